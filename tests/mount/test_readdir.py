"""Large flat directories: every name once, while another process adds and removes names; cookies that stay valid."""

import collections
import ctypes
import errno
import os
import resource
import struct
import time

import pytest

import kvc_env
from kvc_env import MIB
from kvc_mount import SOON, wait_until
from kvc_process import Child, in_process, in_processes

COUNT = 1_000_000 if kvc_env.LONG else 20_000 if kvc_env.QUICK else 100_000
SYS_GETDENTS64 = 217
_libc = ctypes.CDLL(None, use_errno=True)


def getdents(fd, size):
    """[(name, cookie of the next entry, inode, type)] of one getdents64 call; empty at the end."""
    buffer = ctypes.create_string_buffer(size)
    done = _libc.syscall(SYS_GETDENTS64, fd, buffer, size)
    if done < 0:
        raise OSError(ctypes.get_errno(), "getdents64")
    entries, at, data = [], 0, buffer.raw[:done]
    while at < done:
        inode, cookie, length, kind = struct.unpack_from("<QqHB", data, at)
        name = data[at + 19 : at + length].split(b"\0", 1)[0]
        entries.append((name.decode(), cookie, inode, kind))
        at += length
    return entries


def all_entries(path, size=4096):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries = []
        while part := getdents(fd, size):
            entries += part
        return entries
    finally:
        os.close(fd)


def make_names(directory, first, last):
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for index in range(first, last):
        os.close(os.open(f"{index:064x}_stable.bin", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


@pytest.mark.deadline(3600 if kvc_env.LONG else 900)
def test_every_name_once_while_others_come_and_go(root):
    directory = root.join("flat")
    os.mkdir(directory)
    in_processes([(make_names, directory, 0, COUNT // 2), (make_names, directory, COUNT // 2, COUNT)])
    expected = {f"{index:064x}_stable.bin" for index in range(COUNT)}
    stop_reader, stop_writer = os.pipe()

    def come_and_go():
        os.set_blocking(stop_reader, False)
        serial = 0
        while True:
            name = os.path.join(directory, f"coming{serial % 50}")
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
            os.rename(name, os.path.join(directory, f"going{serial % 70}"))
            if serial >= 30:
                os.unlink(os.path.join(directory, f"going{(serial - 30) % 70}"))
            serial += 1
            try:
                if os.read(stop_reader, 1):
                    return serial
            except BlockingIOError:
                pass

    def list_all():
        for _ in range(2):
            names = [entry.name for entry in os.scandir(directory)]
            stable = [name for name in names if name.endswith("_stable.bin")]
            assert len(stable) == len(set(stable)), "a name came twice"
            assert set(stable) == expected, f"{len(expected - set(stable))} names are missing"
            assert all(name.startswith(("coming", "going")) for name in names if not name.endswith("_stable.bin"))

    busy = Child(come_and_go)
    try:
        in_process(list_all)
    finally:
        os.write(stop_writer, b"x")
    assert busy.result() > 0
    root.remount()
    missing = expected - set(os.listdir(directory))
    assert not missing, f"{len(missing)} of {len(expected)} names are gone after a remount"


@pytest.fixture
def thousand(root):
    directory = root.join("thousand")
    os.mkdir(directory)
    make_names(directory, 0, 1000)
    os.mkdir(os.path.join(directory, "subdirectory"))
    os.symlink("x", os.path.join(directory, "link"))
    return directory


def test_dot_entries_and_types(thousand):
    entries = {name: (inode, kind) for name, _, inode, kind in all_entries(thousand)}
    assert len(entries) == 1004
    assert entries["."][1] == entries[".."][1] == entries["subdirectory"][1] == 4
    assert entries["link"][1] == 10 and entries[f"{7:064x}_stable.bin"][1] == 8
    for name in ("subdirectory", "link", f"{7:064x}_stable.bin"):
        assert entries[name][0] == os.lstat(os.path.join(thousand, name)).st_ino


@pytest.mark.parametrize("size", [280, 4096, 1 << 20])
def test_any_buffer_size(size, thousand):
    names = [name for name, _, _, _ in all_entries(thousand, size)]
    assert len(names) == len(set(names)) == 1004


def test_seekdir_returns_to_a_cookie(thousand):
    fd = os.open(thousand, os.O_RDONLY | os.O_DIRECTORY)
    entries = []
    while part := getdents(fd, 1000):
        entries += part
    for position in (0, 1, 2, 500, 1002):
        os.lseek(fd, entries[position][1], os.SEEK_SET)
        rest = []
        while part := getdents(fd, 4096):
            rest += part
        assert [entry[0] for entry in rest] == [
            entry[0] for entry in entries[position + 1 :]
        ], f"after the cookie of entry {position}"
    os.lseek(fd, 0, os.SEEK_SET)
    assert getdents(fd, 500)[0][0] == entries[0][0]
    os.close(fd)


def test_cookies_stay_valid_while_names_are_removed(thousand):
    """`rm -r` and every cleaner: read some, remove them, go on reading from where one was."""
    fd = os.open(thousand, os.O_RDONLY | os.O_DIRECTORY)
    seen = []
    while part := getdents(fd, 2000):
        for name, _, _, kind in part:
            if kind == 8:
                seen.append(name)
                os.unlink(os.path.join(thousand, name))
    os.close(fd)
    assert len(seen) == len(set(seen)) == 1000
    assert sorted(os.listdir(thousand)) == ["link", "subdirectory"]


def test_a_removed_directory_still_open_lists_nothing(root):
    directory = root.join("gone")
    os.mkdir(directory)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(directory)
    try:
        names = {name for name, _, _, _ in getdents(fd, 4096)}
    except FileNotFoundError:  # the usual answer; an empty listing is as good
        names = set()
    assert names <= {".", ".."}
    with pytest.raises(FileNotFoundError):
        os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.close(fd)


def test_a_removed_working_directory_lists_nothing(root):
    directory = root.join("gone")
    os.mkdir(directory)

    def work():
        os.chdir(directory)
        os.rmdir(directory)
        for _ in range(3):
            assert os.listdir(".") == []
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            assert os.fstat(fd).st_nlink == 0
            assert os.listdir(fd) == os.listdir(f"/proc/self/fd/{fd}") == []
            os.close(fd)
        with pytest.raises(FileNotFoundError):
            os.mkdir("sub")

    in_process(work)


def test_a_directory_that_others_remove_and_make_again_is_there_or_not(root):
    """No call meets ESTALE, however often what was looked up is gone when it is opened."""
    directory = root.join("comes and goes")
    until = time.monotonic() + (5 if kvc_env.QUICK else 10) * kvc_env.SCALE

    def count(*calls):
        met = collections.Counter()
        while time.monotonic() < until:
            for call in calls:
                try:
                    call(directory)
                    met[0] += 1
                except OSError as error:
                    met[error.errno] += 1
        return met

    busy = [Child(count, os.mkdir, os.rmdir) for _ in range(3)]
    busy += [Child(count, os.listdir) for _ in range(2)]
    busy += [Child(count, lambda path: os.chmod(path, 0o755), lambda path: os.setxattr(path, "user.a", b"1"))]
    met = sum((each.result() for each in busy), collections.Counter())
    assert met[0] > 1000 and met[errno.ENOENT] > 100, met
    assert set(met) <= {0, errno.ENOENT, errno.EEXIST}, met


def test_rewinddir_sees_new_names(thousand):
    fd = os.open(thousand, os.O_RDONLY | os.O_DIRECTORY)
    while getdents(fd, 1 << 16):
        pass
    make_names(thousand, 2000, 2001)
    os.lseek(fd, 0, os.SEEK_SET)
    names = []
    while part := getdents(fd, 1 << 16):
        names += [entry[0] for entry in part]
    os.close(fd)
    assert f"{2000:064x}_stable.bin" in names
    assert len(names) == 1005


def page_faults(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])


def test_a_listing_costs_the_daemon_what_is_in_it(new_mount):
    """Not what its reader has room for: find and rm read small directories of chunks into buffers of up to 1 MiB."""
    mount = new_mount()
    top = os.path.join(mount.path, "many")
    for index in range(300):
        os.makedirs(os.path.join(top, f"{index:04x}"))
        os.close(os.open(os.path.join(top, f"{index:04x}", "chunk.bin"), os.O_WRONLY | os.O_CREAT))
    before = page_faults(mount.pid)
    for index in range(300):
        names = all_entries(os.path.join(top, f"{index:04x}"), 2**20)
        assert [name for name, *_ in names if not name.startswith(".")] == ["chunk.bin"]
    if not kvc_env.has_sanitizer():  # it keeps what was given back, and takes new pages instead
        assert page_faults(mount.pid) - before < 300 * 32  # one buffer of 1 MiB is 256 of them


def test_a_listing_leaves_what_the_kernel_knows_of_names(new_mount):
    """Names are leased by the probes of them, so a listing does not tell the kernel more; nor that it has to ask for each once more."""
    mount = new_mount()
    top = os.path.join(mount.path, "known")
    os.mkdir(top)
    for attempt in range(20):
        names = [os.path.join(top, f"{attempt}-{index}") for index in range(8)]
        start = time.monotonic()
        for name in names:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
        assert len(os.listdir(top)) == 8 * (attempt + 1)
        before = mount.status()["probes"]["hit"]
        for name in names:
            os.stat(name)
        hits = mount.status()["probes"]["hit"] - before
        if time.monotonic() - start < 0.9:  # the kernel goes by what it knows for a second
            break
    else:
        pytest.skip("this machine is too slow today")
    assert hits == 0


def test_a_large_reader_gets_many_names_at_once(new_mount):
    top = os.path.join(new_mount().path, "large")
    os.mkdir(top)
    make_names(top, 0, 3000)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    first = getdents(fd, 2**20)
    os.close(fd)
    newest = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 18)  # older ones ask for 4 KiB at a time
    assert len(first) > (2000 if newest else 10)


def test_open_directories_hold_no_memory(new_mount):
    """Each was read in part, and is to be read on some time."""
    mount = new_mount({"memory": "16M"})
    top = os.path.join(mount.path, "long names")
    os.mkdir(top)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    names = {f"{index:0200}" for index in range(1500)}
    for name in names:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)

    def resident():
        with open(f"/proc/{mount.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(4000, hard - 200)
    before, most, opened = resident(), 0, []
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for _ in range(count):
            opened.append((os.open(top, os.O_RDONLY | os.O_DIRECTORY), []))
            opened[-1][1].extend(getdents(opened[-1][0], 4096))
            most = max(most, resident())
        for fd, entries in opened[:: count // 20]:  # the first of them lost what was kept, the last did not
            while part := getdents(fd, 4096):
                entries += part
            assert sorted(name for name, *_ in entries) == sorted(names | {".", ".."})
    finally:
        for fd, _ in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if kvc_env.has_sanitizer():
        return
    assert most <= before + 64 * MIB, f"{most / MIB:.0f} MiB with {count} directories open, {before / MIB:.0f} before"
    wait_until(lambda: resident() <= before + 32 * MIB, SOON, "it is given back")
