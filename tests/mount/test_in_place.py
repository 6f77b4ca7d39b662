"""One file is one inode: what changes in place is not passed through, and who keeps an older body keeps what belongs to it."""

import fcntl
import importlib.util
import mmap
import os
import pathlib
import time

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, wait_until
from kvc_native import aligned
from kvc_process import in_process, in_processes

pytestmark = [pytest.mark.needs_daemon, pytest.mark.skipif(os.geteuid() != 0, reason="passthrough needs root")]

SIZE = 9 * MIB


def load(path):
    """A module of tests/calls, whose programs are run here on a volume of another kind."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names = load(pathlib.Path(__file__).parents[1] / "calls" / "test_vanishing_names.py")


@pytest.fixture
def mount(new_mount):
    made = new_mount({"pack_below": "8K"})
    if made.status()["features"]["passthrough"] is not True:
        pytest.skip("this kernel or libfuse has no passthrough")
    return made


def put(path, data):
    with open(f"{path}.tmp", "wb", buffering=0) as file:
        file.write(data)
    os.rename(f"{path}.tmp", path)


def passed(mount, path):
    """Whether a reader of it is passed through."""
    before = mount.status()["reads"]["passthrough_opens"]
    os.close(os.open(path, os.O_RDONLY))
    return mount.status()["reads"]["passthrough_opens"] > before


def append(path, data):
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def change_some(path, data):
    with open(path, "r+b", buffering=0) as file:
        file.seek(1000)
        file.write(data)


def lock(path):
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def lock_record(path):
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def truncate(path):
    os.truncate(path, SIZE - 1)


@pytest.mark.parametrize(
    "change", [lambda path: append(path, b"line\n"), lambda path: change_some(path, b"page"), lock, lock_record, truncate],
    ids=["append", "change", "flock", "fcntl", "truncate"],
)
def test_what_is_no_chunk_is_not_passed_through_any_more(mount, change):
    path = os.path.join(mount.path, "file")
    put(path, payload("file", SIZE))
    mount.remount()
    assert passed(mount, path)
    in_process(change, path)
    assert not passed(mount, path)
    mount.remount()
    assert not passed(mount, path)
    assert [name for name in os.listxattr(path)] == []


def test_a_chunk_that_is_written_anew_as_a_whole_still_is(mount):
    path = os.path.join(mount.path, "chunk")
    put(path, payload("chunk", SIZE))
    mount.remount()
    with open(path, "wb", buffering=0) as file:
        file.write(payload("anew", SIZE))
    mount.remount()
    assert passed(mount, path)


@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
def test_following_a_growing_file(mount, before):
    """tail -f of a large log: the very first change of a finished file is the exception, no later one."""
    path = os.path.join(mount.path, "log")
    with open(path, "wb", buffering=0) as file:
        file.write(b"a" * SIZE)
    if before == 0:
        append(path, b"one\n")
        append(path, b"two\n")
    else:
        mount.remount()
        in_process(append, path, b"one\n")
    with open(path, "rb", buffering=0) as reader:
        reader.seek(0, os.SEEK_END)
        in_process(append, path, b"three\n")
        wait_until(lambda: reader.read() == b"three\n", SOON, "the reader sees what is appended")
        assert os.fstat(reader.fileno()).st_size == os.stat(path).st_size


@pytest.mark.parametrize("new_size", [SIZE // 2, SIZE * 2])
@pytest.mark.parametrize("way", ["truncating open", "truncate and write"])
def test_who_keeps_the_old_bytes_keeps_their_size(mount, new_size, way):
    path = os.path.join(mount.path, "chunk")
    old, new = payload("old", SIZE), payload("new", new_size)
    put(path, old)
    mount.remount()
    fd = os.open(path, os.O_RDONLY)
    assert os.pread(fd, 10, 0) == old[:10]

    def rewrite():
        writer = os.open(path, os.O_WRONLY | (os.O_TRUNC if way == "truncating open" else 0))
        if way != "truncating open":
            os.ftruncate(writer, new_size)
        os.pwrite(writer, new, 0)
        os.close(writer)

    in_process(rewrite)
    time.sleep(1.1)  # past what the kernel remembers

    def look():
        size = os.fstat(fd).st_size
        assert size == SIZE
        with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            assert_bytes(mapped[:], old, "mapped")
        assert_bytes(os.pread(fd, size, 0), old, "read")
        os.fchmod(fd, 0o640)
        assert os.fstat(fd).st_size == SIZE

    in_process(look)
    assert os.stat(path).st_size == new_size
    assert os.stat(path).st_mode & 0o777 == 0o640
    with open(path, "rb") as file:
        assert_bytes(file.read(), new, "by name")
    os.close(fd)


def test_an_open_without_a_name_is_not_told_estale(mount):
    """By /proc/self/fd the kernel has nothing to look up: a reader keeps what it has, a writer is told that it is in use."""
    path = os.path.join(mount.path, "chunk")
    old = payload("old", SIZE)
    put(path, old)
    mount.remount()
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Text file busy"):
        os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    change_some(path, b"new")
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    assert_bytes(os.pread(again, SIZE, 0), old, "opened anew without a name")
    os.close(again)
    os.close(fd)


@pytest.fixture
def changed(mount):
    """A chunk with two names that a reader has open, and that is then opened to be changed: the kernel knows it by two nodeids."""
    path, link = os.path.join(mount.path, "chunk"), os.path.join(mount.path, "link")
    put(path, bytes(SIZE))
    os.link(path, link)
    mount.remount()
    reader, pathfd = os.open(path, os.O_RDONLY), os.open(path, os.O_PATH)
    assert mount.status()["reads"]["passthrough_opens"] == 1
    os.stat(link)
    writer = os.open(path, os.O_RDWR | os.O_APPEND)
    yield mount, path, link, reader, pathfd, writer
    os.close(pathfd)


def close_all_but(mount, left, *descriptors):
    for fd in descriptors:
        os.close(fd)
    wait_until(lambda: mount.status()["objects"]["open_handles"] == left, SOON, "the kernel has let go of them")


def test_two_that_append_lose_nothing(changed):
    """The second has no name that the kernel could look up."""
    mount, path, _, reader, pathfd, writer = changed
    os.write(writer, b"1" * 1000)
    close_all_but(mount, 1, reader)
    with pytest.raises(OSError, match="Text file busy"):
        os.open(f"/proc/self/fd/{pathfd}", os.O_WRONLY | os.O_APPEND)
    os.write(writer, b"2" * 1000)
    close_all_but(mount, 0, writer)
    expected = b"1" * 1000 + b"2" * 1000
    nameless = os.open(f"/proc/self/fd/{pathfd}", os.O_WRONLY | os.O_APPEND)
    named = os.open(path, os.O_WRONLY | os.O_APPEND)
    for digit in (b"3", b"4", b"5"):
        for fd in (nameless, named):
            os.write(fd, digit * 1000)
            expected += digit * 1000
    close_all_but(mount, 0, nameless, named)
    with open(path, "rb", buffering=0) as file:
        assert os.pread(file.fileno(), SIZE, SIZE) == expected
        assert os.fstat(file.fileno()).st_size == SIZE + len(expected)


def test_mappings_by_two_names_agree(changed):
    mount, _, link, reader, _, writer = changed
    os.pwrite(writer, b"1", SIZE)  # at the end: O_APPEND
    close_all_but(mount, 1, reader)
    other = os.open(link, os.O_RDONLY)
    with mmap.mmap(writer, 8192) as stores, mmap.mmap(other, 8192, prot=mmap.PROT_READ) as loads:
        assert loads[:8192] == bytes(8192)
        stores[:8192] = b"2" * 8192
        assert loads[:8192] == b"2" * 8192
        assert os.pread(other, 8192, 0) == b"2" * 8192
    close_all_but(mount, 0, writer, other)


def test_attributes_by_two_names_agree(changed):
    mount, path, link, reader, _, writer = changed
    for mode in (0o640, 0o600, 0o644):
        os.fchmod(writer, mode)
        assert [os.stat(name).st_mode & 0o777 for name in (path, link)] == [mode] * 2
    close_all_but(mount, 1, reader)
    for size in (5000, 6000, 7000):
        os.ftruncate(writer, size)
        assert [os.stat(name).st_size for name in (path, link)] == [size] * 2
    close_all_but(mount, 0, writer)


@pytest.mark.parametrize("size", [3098112, SIZE, SIZE + 777])
@pytest.mark.parametrize("pack_below", ["8K", "32M"], ids=["solo", "packed"])
def test_odd_reads_with_o_direct_are_answered_wherever_it_lies(new_mount, size, pack_below):
    mount = new_mount({"pack_below": pack_below})
    path, data = os.path.join(mount.path, "chunk"), payload("chunk", size)
    put(path, data)
    buffer = memoryview(aligned(4 * MIB))

    def read(fd, offset, length, at=0):
        return bytes(buffer[at : at + os.preadv(fd, [buffer[at : at + length]], offset)])

    for state in ("fresh", "on the volume", "beside a buffered reader"):
        if state == "on the volume":
            mount.remount()
        beside = os.open(path, os.O_RDONLY) if state == "beside a buffered reader" else None
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for offset, length, at in ((0, 4096, 0), (512, 512, 0), (777, 1000, 0), (4096, 777, 0), (size - 777, 777, 0), (0, 3098012, 0), (0, 4096, 3)):
            assert read(fd, offset, length, at) == data[offset : offset + length], (state, offset, length, at)
        os.close(fd)
        if beside is not None:
            assert_bytes(os.pread(beside, size, 0), data, "the buffered reader")
            os.close(beside)


def test_names_that_are_replaced_on_a_full_volume(new_mount):
    """Where nothing of what was replaced may linger: the name is still there all the time."""
    mount = new_mount({"capacity": "64M", "keep_free": "0", "memory": "32M", "evict": "off"})
    with pytest.raises(OSError):
        for number in range(100):
            put(os.path.join(mount.path, f"filler{number}"), payload(f"filler{number}", MIB))
    os.unlink(os.path.join(mount.path, "filler0"))
    mount.drain()

    class Root:
        @staticmethod
        def join(name):
            return os.path.join(mount.path, name)

    for number in range(2):
        put(Root.join(f"there{number}"), payload("x", 3000))
        os.setxattr(Root.join(f"there{number}"), "user.x", b"1")
    end = time.monotonic() + 2

    def replace():
        try:
            names.replace_all_the_time(Root, end)
        except OSError as error:
            assert error.strerror == "No space left on device"

    in_processes([(replace,), (replace,)] + [(names.look_all_the_time, Root, end)] * 3)
