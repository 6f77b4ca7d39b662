"""File handles (name_to_handle_at, open_by_handle_at): they live as long as the object, also when nobody remembers it and across mounts."""

import ctypes
import errno
import os

import pytest

from kvc_data import payload
from kvc_env import MIB
from kvc_mount import SOON, order, run_command, wait_until

pytestmark = [pytest.mark.needs_daemon, pytest.mark.needs_root, pytest.mark.skipif(os.geteuid() != 0, reason="open_by_handle_at needs root")]

_libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, MAX_HANDLE = -100, 128


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * MAX_HANDLE)]


def handle_of(path):
    handle, mount_id = _Handle(bytes=MAX_HANDLE), ctypes.c_int()
    if _libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def open_handle(mount, handle, flags=os.O_RDONLY):
    """A descriptor; the caller closes it."""
    root = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = _libc.open_by_handle_at(root, ctypes.byref(handle), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(root)


def read_handle(mount, handle):
    with os.fdopen(open_handle(mount, handle), "rb") as file:
        return file.read()


def path_of(mount, handle):
    fd = open_handle(mount, handle, os.O_PATH)
    try:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), mount.path)
    finally:
        os.close(fd)


def put(mount, name, size=10_000):
    path = os.path.join(mount.path, name)
    with open(f"{path}.tmp", "wb") as file:
        file.write(payload(name, size))
    os.rename(f"{path}.tmp", path)
    return path


def test_handles_live_across_mounts(new_mount):
    mount = new_mount()
    os.makedirs(os.path.join(mount.path, "a/b/c"))
    os.mkdir(os.path.join(mount.path, "other"))
    handles = {name: handle_of(put(mount, name)) for name in ("top", "a/file", "a/b/c/deep")}
    directories = {name: handle_of(os.path.join(mount.path, name)) for name in (".", "a", "a/b", "a/b/c")}
    os.symlink("target", os.path.join(mount.path, "a/link"))
    link = handle_of(os.path.join(mount.path, "a/link"))
    for _ in range(2):
        mount.remount()
        for name, handle in directories.items():  # first, while the kernel knows none of them
            assert path_of(mount, handle) == name
            fd = open_handle(mount, handle)
            assert name != "a/b/c" or os.listdir(fd) == ["deep"]
            os.close(fd)
        for name, handle in handles.items():
            assert read_handle(mount, handle) == payload(name, 10_000)
        fd = open_handle(mount, link, os.O_PATH | os.O_NOFOLLOW)
        assert os.readlink("", dir_fd=fd) == "target"
        os.close(fd)
    fd = open_handle(mount, handles["top"], os.O_RDWR)
    os.pwrite(fd, b"changed", 100)
    os.close(fd)
    with open(os.path.join(mount.path, "top"), "rb") as file:
        assert file.read()[100:107] == b"changed"


def test_handles_of_what_was_moved(new_mount):
    mount = new_mount()
    os.makedirs(os.path.join(mount.path, "from/below"))
    os.mkdir(os.path.join(mount.path, "to"))
    file, directory = handle_of(put(mount, "from/below/file")), handle_of(os.path.join(mount.path, "from/below"))
    mount.remount()
    assert path_of(mount, directory) == "from/below"  # a way up was found, and is out of date now
    os.rename(os.path.join(mount.path, "from/below"), os.path.join(mount.path, "to/moved"))
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as caches:
        caches.write("2")
    assert path_of(mount, directory) == "to/moved"
    assert read_handle(mount, file) == payload("from/below/file", 10_000)
    mount.remount()
    assert path_of(mount, directory) == "to/moved"
    assert read_handle(mount, file) == payload("from/below/file", 10_000)


def test_handle_of_another_nodes_file_never_means_that_of_a_third(new_mount):
    a = new_mount({"node": "a"})
    b = new_mount({"node": "b"}, volume=a.volume)
    volume = a.volume
    for number in range(3):
        put(a, f"a-{number}")
    a.drain()
    order(b.path, "refresh")
    handles = [handle_of(os.path.join(b.path, f"a-{number}")) for number in range(3)]
    b.remount()
    wait_until(lambda: os.path.exists(os.path.join(b.path, "a-2")), SOON, "what is of a is seen again")
    for number, handle in enumerate(handles):
        assert read_handle(b, handle) == payload(f"a-{number}", 10_000), "it lives across mounts"
    b.stop()
    a.stop()
    assert run_command("gc", volume, "--node", "a", "--remove").returncode == 0
    c = new_mount({"node": "c"}, volume=volume)
    for number in range(3):
        put(c, f"c-{number}")
    c.drain()
    b.start()
    order(b.path, "refresh")
    for number in range(3):
        os.stat(os.path.join(b.path, f"c-{number}"))
    for handle in handles:
        with pytest.raises(OSError) as stale:
            read_handle(b, handle)
        assert stale.value.args[0] == errno.ESTALE


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_handles_of_what_is_gone_are_stale(new_mount, cold):
    mount = new_mount()
    file, directory = handle_of(put(mount, "file")), os.path.join(mount.path, "directory")
    os.mkdir(directory)
    directory_handle = handle_of(directory)
    replaced = handle_of(put(mount, "replaced"))
    put(mount, "replaced", 20_000)
    os.unlink(os.path.join(mount.path, "file"))
    os.rmdir(directory)
    if cold:
        mount.remount()
    put(mount, "new")  # takes no number of theirs
    os.mkdir(directory)
    for handle in (file, directory_handle, replaced):

        def is_stale(handle=handle):
            try:
                os.close(open_handle(mount, handle))
            except OSError as error:
                assert error.errno == errno.ESTALE
                return True
            return False

        wait_until(is_stale, SOON, "the handle is stale")  # a replaced body can be opened a moment longer


def test_an_alias_is_no_other_file_at_the_next_mount(new_mount):
    """Who writes a file that others read by passthrough does so by another nodeid, which a handle may hold."""
    mount = new_mount({"memory_file_min": 0})
    names = ["first", "second"]
    for name in names:
        put(mount, name, 9 * MIB)
    handles = {}
    for generation in range(2):
        mount.remount()
        for name in names if generation == 0 else reversed(names):
            path = os.path.join(mount.path, name)
            with open(path, "rb") as reader:
                reader.read(1)
                with open(path, "r+b") as writer:
                    writer.write(payload(name, 1000))
                handles.setdefault((generation, name), handle_of(path))
        for (_, name), handle in handles.items():
            try:
                assert read_handle(mount, handle) == payload(name, 9 * MIB)
            except OSError as error:
                assert error.errno == errno.ESTALE


def test_handles_of_the_virtual_files(new_mount):
    mount = new_mount()
    handle = handle_of(os.path.join(mount.path, ".kvcachefs/metrics"))
    mount.remount()
    assert b"kvcachefs" in read_handle(mount, handle)


@pytest.mark.parametrize("other", ["node", "volume"])
def test_a_handle_means_no_file_of_another_node_or_volume_that_is_mounted_there(new_mount, other):
    """Both number their first files alike."""
    mount = new_mount({"node": "a"})
    handles = [handle_of(put(mount, f"a{index}")) for index in range(4)]
    os.mkdir(os.path.join(mount.path, "directory"))
    handles.append(handle_of(os.path.join(mount.path, "directory")))
    assert read_handle(mount, handles[0]) == payload("a0", 10_000)
    mount.stop()
    there = new_mount({"node": "b"}, volume=mount.volume) if other == "node" else new_mount({"node": "a"})
    for index in range(6):
        put(there, f"b{index}")
    os.mkdir(os.path.join(there.path, "other"))
    for name in os.listdir(there.path):
        os.stat(os.path.join(there.path, name))
    for handle in handles:
        with pytest.raises(OSError) as caught:
            os.close(open_handle(there, handle))
        assert caught.value.errno == errno.ESTALE
    there.stop()
    mount.remount()
    assert read_handle(mount, handles[0]) == payload("a0", 10_000)
