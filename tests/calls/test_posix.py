"""Drop-in for a directory: the calls of design's client promise that no single client explains. All of it also holds on a plain directory."""

import contextlib
import errno
import fcntl
import os
import random
import stat
import struct
import subprocess
import time

import pytest

import kvc_native
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_native import RENAME_EXCHANGE, RENAME_NOREPLACE, Mapping
from kvc_process import Child, Gate, in_process, in_processes
from sequences import read_once


def write_file(path, body, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    try:
        assert os.write(fd, body) == len(body)
    finally:
        os.close(fd)


# --- fallocate, holes ---


def test_fallocate_mode_0_extends_and_keeps_data(root):
    path = root.join("f")

    def run():
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(fd, b"data")
        kvc_native.fallocate(fd, 0, 0, 100_000)
        assert os.fstat(fd).st_size == 100_000
        kvc_native.fallocate(fd, 0, 0, 10)
        assert os.fstat(fd).st_size == 100_000, "fallocate never shrinks"
        os.close(fd)

    in_process(run)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 200_000), b"data" + bytes(99_996), "allocated"))


def test_fallocate_keep_size(root):
    path = root.join("f")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"data")
    kvc_native.fallocate(fd, kvc_native.FALLOC_FL_KEEP_SIZE, 0, 4 * MIB)
    kvc_native.fallocate(fd, kvc_native.FALLOC_FL_KEEP_SIZE, 8 * MIB, MIB)
    assert os.fstat(fd).st_size == 4
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"data", "kept"))


@pytest.mark.parametrize("size", [100_000, 3 * MIB, 40 * MIB])
@pytest.mark.parametrize("sealed", [False, True], ids=["fresh", "sealed"])
def test_punch_hole(size, sealed, root):
    path = root.join("f")
    body = bytearray(payload(f"punch{size}", size))
    write_file(path, body)
    if sealed:
        root.remount()
    start, length = 5000, size // 2
    body[start : start + length] = bytes(length)

    def punch():
        fd = os.open(path, os.O_RDWR)
        kvc_native.fallocate(fd, kvc_native.FALLOC_FL_PUNCH_HOLE | kvc_native.FALLOC_FL_KEEP_SIZE, start, length)
        kvc_native.fallocate(fd, kvc_native.FALLOC_FL_PUNCH_HOLE | kvc_native.FALLOC_FL_KEEP_SIZE, size + 4096, length)
        os.close(fd)

    in_process(punch)
    assert os.stat(path).st_size == size
    root.check_everywhere(lambda: assert_bytes(read_once(path, size + 1), body, "punched"))


def test_fallocate_refusals(root):
    fd = os.open(root.join("f"), os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(8192))
    with pytest.raises(OSError) as caught:
        kvc_native.fallocate(fd, kvc_native.FALLOC_FL_PUNCH_HOLE, 0, 4096)  # without KEEP_SIZE
    assert caught.value.errno in (errno.EOPNOTSUPP, errno.EINVAL)
    for offset, length in ((-1, 10), (0, 0), (0, -5)):
        with pytest.raises(OSError) as caught:
            kvc_native.fallocate(fd, 0, offset, length)
        assert caught.value.errno == errno.EINVAL
    os.close(fd)
    fd = os.open(root.join("f"), os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        kvc_native.fallocate(fd, 0, 0, 10)
    assert caught.value.errno == errno.EBADF
    os.close(fd)


@pytest.mark.needs_daemon
def test_collapse_range_is_refused_with_eopnotsupp(root):
    fd = os.open(root.join("f"), os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(8192))
    with pytest.raises(OSError) as caught:
        kvc_native.fallocate(fd, kvc_native.FALLOC_FL_COLLAPSE_RANGE, 0, 4096)
    assert caught.value.errno == errno.EOPNOTSUPP
    os.close(fd)


def data_ranges(fd, size):
    """[(start, end)] by SEEK_DATA and SEEK_HOLE."""
    ranges, offset = [], 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        assert offset <= start < end <= size
        ranges.append((start, end))
        offset = end
    return ranges


def test_seek_hole_and_data(root):
    """What is outside of the reported data is zero; a hole at the end and ENXIO past it as lseek(2) says."""
    path, size = root.join("sparse"), 8 * MIB
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    os.pwrite(fd, b"a" * 4096, MIB)
    os.pwrite(fd, b"b" * 70_000, 5 * MIB + 123)
    os.close(fd)

    def check():
        fd = os.open(path, os.O_RDONLY)
        body = os.pread(fd, size, 0)
        ranges = data_ranges(fd, size)
        covered = bytearray(size)
        for start, end in ranges:
            covered[start:end] = body[start:end]
        assert_bytes(covered, body, "data outside of the reported ranges")
        assert os.lseek(fd, 0, os.SEEK_HOLE) <= size
        assert os.lseek(fd, size - 1, os.SEEK_HOLE) in (size - 1, size)
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            for offset in (size, size + 1):
                with pytest.raises(OSError) as caught:
                    os.lseek(fd, offset, whence)
                assert caught.value.errno == errno.ENXIO
        assert os.lseek(fd, -10, os.SEEK_END) == size - 10
        os.close(fd)

    root.check_everywhere(check)


def test_sparse_file_costs_its_data_only(root):
    path = root.join("sparse")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 16 * MIB)
    os.pwrite(fd, b"x" * MIB, 8 * MIB)
    os.close(fd)
    expected = bytearray(16 * MIB)
    expected[8 * MIB : 9 * MIB] = b"x" * MIB

    def check():
        assert os.stat(path).st_size == 16 * MIB
        assert_bytes(read_once(path, 17 * MIB), expected, "sparse")

    root.check_everywhere(check)


def test_truncate_down_and_up_shows_zeros(root):
    path = root.join("f")
    body = payload("trunc", 3 * MIB)
    write_file(path, body)

    def run():
        os.truncate(path, 1000)
        os.truncate(path, 2 * MIB)
        assert_bytes(read_once(path, 3 * MIB), body[:1000] + bytes(2 * MIB - 1000), "cut and grown")

    in_process(run)
    root.remount()
    in_process(run)  # the same on the sealed body
    os.truncate(path, 0)
    assert os.stat(path).st_size == 0
    root.check_everywhere(lambda: assert_bytes(read_once(path, 10), b"", "emptied"))


@pytest.mark.parametrize("size", [5000, 2 * MIB + 3])
def test_copy_file_range(size, root):
    source, target = root.join("source"), root.join("target")
    body = payload("cfr", size)
    write_file(source, body)

    def copy(source_fd, target_fd, length, from_offset, to_offset):
        copied = 0
        while copied < length:
            done = os.copy_file_range(source_fd, target_fd, length - copied, from_offset + copied, to_offset + copied)
            if not done:
                break
            copied += done
        return copied

    def run():
        source_fd, target_fd = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT)
        assert copy(source_fd, target_fd, size + 100, 0, 0) == size
        assert copy(source_fd, target_fd, 1000, 10, size + 50) == 1000
        assert os.copy_file_range(source_fd, target_fd, 10, size, 0) == 0, "past the end of the source"
        os.close(source_fd)
        os.close(target_fd)

    in_process(run)
    root.check_everywhere(
        lambda: assert_bytes(read_once(target, 2 * size + 2000), body + bytes(50) + body[10:1010], "copied")
    )


# --- rename, links, unlink ---


def test_rename_noreplace(root):
    write_file(root.join("a"), b"a")
    write_file(root.join("b"), b"b")
    with pytest.raises(FileExistsError):
        kvc_native.renameat2(root.join("a"), root.join("b"), RENAME_NOREPLACE)
    kvc_native.renameat2(root.join("a"), root.join("c"), RENAME_NOREPLACE)

    def check():
        assert sorted(os.listdir(root.path)) == ["b", "c"]
        assert read_once(root.join("b"), 5) == b"b" and read_once(root.join("c"), 5) == b"a"

    root.check_everywhere(check)


def test_rename_exchange(root):
    write_file(root.join("a"), payload("a", MIB))
    write_file(root.join("b"), b"b")
    os.mkdir(root.join("d"))
    write_file(root.join("d", "inner"), b"inner")
    kvc_native.renameat2(root.join("a"), root.join("b"), RENAME_EXCHANGE)
    kvc_native.renameat2(root.join("a"), root.join("d"), RENAME_EXCHANGE)
    with pytest.raises(FileNotFoundError):
        kvc_native.renameat2(root.join("a"), root.join("absent"), RENAME_EXCHANGE)

    def check():
        assert read_once(root.join("d"), 5) == b"b"
        assert_bytes(read_once(root.join("b"), 2 * MIB), payload("a", MIB), "b")
        assert read_once(root.join("a", "inner"), 10) == b"inner"
        assert sorted(os.listdir(root.path)) == ["a", "b", "d"]

    root.check_everywhere(check)


def test_rename_replaces_while_the_old_is_open(root):
    write_file(root.join("old"), b"old bytes")
    fd = os.open(root.join("old"), os.O_RDONLY)
    write_file(root.join("new"), b"new bytes")
    os.rename(root.join("new"), root.join("old"))
    assert os.pread(fd, 100, 0) == b"old bytes"
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(root.join("old"), 100), b"new bytes", "old"))


def test_rename_of_directories(root):
    os.makedirs(root.join("a", "b", "c"))
    for index in range(20):
        write_file(root.join("a", "b", f"f{index}"), b"%d" % index)
    os.mkdir(root.join("empty"))
    os.rename(root.join("a", "b"), root.join("moved"))
    os.rename(root.join("moved", "c"), root.join("empty"))  # over an empty directory
    with pytest.raises(OSError) as caught:
        os.rename(root.join("a"), root.join("moved"))
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    with pytest.raises(OSError) as caught:
        os.rename(root.join("moved"), root.join("moved", "into-itself"))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(NotADirectoryError):
        os.rename(root.join("a"), root.join("moved", "f1"))
    with pytest.raises(IsADirectoryError):
        os.rename(root.join("moved", "f1"), root.join("a"))

    def check():
        assert sorted(os.listdir(root.path)) == ["a", "empty", "moved"]
        assert sorted(os.listdir(root.join("moved"))) == sorted(f"f{index}" for index in range(20))
        assert read_once(root.join("moved", "f7"), 5) == b"7"
        assert os.listdir(root.join("a")) == os.listdir(root.join("empty")) == []

    root.check_everywhere(check)


def test_rename_to_itself_and_to_its_own_link(root):
    write_file(root.join("a"), b"a")
    os.rename(root.join("a"), root.join("a"))
    os.link(root.join("a"), root.join("b"))
    os.rename(root.join("a"), root.join("b"))  # two names of one file: nothing happens
    assert sorted(os.listdir(root.path)) == ["a", "b"]
    assert os.stat(root.join("a")).st_nlink == 2


def test_hard_links(root):
    write_file(root.join("a"), payload("link", MIB))
    os.mkdir(root.join("d"))
    os.link(root.join("a"), root.join("d", "b"))
    assert os.stat(root.join("a")).st_ino == os.stat(root.join("d", "b")).st_ino
    assert os.stat(root.join("a")).st_nlink == 2
    with pytest.raises(FileExistsError):
        os.link(root.join("a"), root.join("d", "b"))
    with pytest.raises(PermissionError):
        os.link(root.join("d"), root.join("dirlink"))
    fd = os.open(root.join("d", "b"), os.O_RDWR)
    os.pwrite(fd, b"changed", 0)
    os.close(fd)
    expected = b"changed" + payload("link", MIB)[7:]

    def check():
        assert os.stat(root.join("a")).st_ino == os.stat(root.join("d", "b")).st_ino
        for name in (root.join("a"), root.join("d", "b")):
            assert_bytes(read_once(name, 2 * MIB), expected, name)

    root.check_everywhere(check)
    os.unlink(root.join("a"))
    assert os.stat(root.join("d", "b")).st_nlink == 1
    root.check_everywhere(lambda: assert_bytes(read_once(root.join("d", "b"), 2 * MIB), expected, "b"))


def test_symlinks(root):
    write_file(root.join("target"), b"t")
    targets = {
        "rel": "target",
        "abs": root.join("target"),
        "dangling": "no/such",
        "long": "x" * 4000,
        "odd": b"caf\xe9\n".decode("utf-8", "surrogateescape"),
    }
    for name, target in targets.items():
        os.symlink(target, root.join(name))

    def check():
        for name, target in targets.items():
            assert os.readlink(root.join(name)) == target
            assert os.lstat(root.join(name)).st_size == len(os.fsencode(target))
            assert stat.S_ISLNK(os.lstat(root.join(name)).st_mode)
        assert read_once(root.join("rel"), 5) == read_once(root.join("abs"), 5) == b"t"
        assert not os.path.exists(root.join("dangling"))

    root.check_everywhere(check)
    with pytest.raises(OSError) as caught:
        os.readlink(root.join("target"))
    assert caught.value.errno == errno.EINVAL
    os.symlink("loop", root.join("loop"))
    with pytest.raises(OSError) as caught:
        os.stat(root.join("loop"))
    assert caught.value.errno == errno.ELOOP


def test_unlink_while_open(root):
    path = root.join("f")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, payload("open", MIB))
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        os.stat(path)
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"more", MIB)
    assert_bytes(os.pread(fd, 2 * MIB, 0), payload("open", MIB) + b"more", "unlinked")
    write_file(path, b"a new file of that name")
    assert os.fstat(fd).st_ino != os.stat(path).st_ino
    assert os.fstat(fd).st_size == MIB + 4
    os.ftruncate(fd, 10)
    assert os.pread(fd, 100, 0) == payload("open", MIB)[:10]
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"a new file of that name", "new file"))


def test_directories(root):
    os.mkdir(root.join("d"), 0o750)
    with pytest.raises(FileExistsError):
        os.mkdir(root.join("d"))
    write_file(root.join("d", "f"), b"f")
    with pytest.raises(OSError) as caught:
        os.rmdir(root.join("d"))
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(NotADirectoryError):
        os.rmdir(root.join("d", "f"))
    with pytest.raises(IsADirectoryError):
        os.unlink(root.join("d"))
    with pytest.raises(NotADirectoryError):
        os.open(root.join("d", "f", "g"), os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        os.open(root.join("d"), os.O_WRONLY)
    os.unlink(root.join("d", "f"))
    fd = os.open(root.join("d"), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    os.rmdir(root.join("d"))
    with pytest.raises(FileNotFoundError):
        os.rmdir(root.join("d"))
    os.makedirs(root.join("x", "y"))
    root.check_everywhere(lambda: [os.stat(root.join("x", "y"))])
    assert os.listdir(root.path) == ["x"]


def test_a_removed_directory_is_there_for_who_has_it_open(root):
    os.mkdir(root.join("d"))
    root.mount.drain()
    fd = os.open(root.join("d"), os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(root.join("d"))
    for _ in range(2):
        assert os.fstat(fd).st_nlink == 0
        os.mkdir(root.join("other"))
        os.rmdir(root.join("other"))
        root.mount.drain()
    os.close(fd)


def test_directory_link_counts_and_mtimes(root):
    before = os.stat(root.path).st_mtime_ns
    time.sleep(0.02)
    os.mkdir(root.join("d"))
    assert os.stat(root.path).st_mtime_ns > before
    inner = os.stat(root.join("d")).st_mtime_ns
    time.sleep(0.02)
    write_file(root.join("d", "f"), b"")
    assert os.stat(root.join("d")).st_mtime_ns > inner
    time.sleep(0.02)
    inner = os.stat(root.join("d")).st_mtime_ns
    os.unlink(root.join("d", "f"))
    assert os.stat(root.join("d")).st_mtime_ns > inner


# --- attributes ---


def test_times_far_off_are_the_nearest_that_can_be_kept(root):
    """Not some other year. ext4 ends in 2446, this in 2262."""
    path = root.join("f")
    write_file(path, b"x")
    for second, around in ((10_413_792_000, (9_000_000_000, 20_000_000_000)), (-11_676_096_000, (-12_000_000_000, -2_000_000_000))):
        kvc_native.utimensat(path, (second, 5), (second, 5))
        assert around[0] <= os.stat(path).st_mtime <= around[1]


def test_utimensat_is_exact(root):
    path = root.join("f")
    write_file(path, b"x")
    kvc_native.utimensat(path, (1_234_567_890, 111_222_333), (987_654_321, 444_555_666))

    def check():
        found = os.stat(path)
        assert found.st_atime_ns == 1_234_567_890_111_222_333
        assert found.st_mtime_ns == 987_654_321_444_555_666

    root.check_everywhere(check)
    os.mkdir(root.join("d"))
    kvc_native.utimensat(root.join("d"), (1, 2), (3, 4))
    os.symlink("f", root.join("s"))
    kvc_native.utimensat(root.join("s"), (5, 6), (7, 8), follow=False)
    root.remount()
    assert (os.stat(root.join("d")).st_atime_ns, os.stat(root.join("d")).st_mtime_ns) == (1_000_000_002, 3_000_000_004)
    assert os.lstat(root.join("s")).st_mtime_ns == 7_000_000_008
    before = os.stat(path).st_atime_ns
    kvc_native.utimensat(path, (0, kvc_native.UTIME_OMIT), (10, 0))
    assert os.stat(path).st_atime_ns == before and os.stat(path).st_mtime_ns == 10_000_000_000


def test_times_before_the_epoch_and_far_ahead(root):
    path = root.join("f")
    write_file(path, b"x")
    for seconds in (-100, 4_102_444_800):
        kvc_native.utimensat(path, (seconds, 0), (seconds, 5))
        assert os.stat(path).st_mtime_ns == seconds * 1_000_000_000 + 5


def test_write_changes_mtime_and_ctime_and_read_does_not(root):
    path = root.join("f")
    write_file(path, b"x" * 1000)
    kvc_native.utimensat(path, (1000, 0), (1000, 0))
    changed = os.stat(path).st_ctime_ns
    read_once(path, 1000)
    assert os.stat(path).st_mtime_ns == 1000 * 10**9
    time.sleep(0.02)
    write_file(path, b"y", os.O_WRONLY)
    found = os.stat(path)
    assert found.st_mtime_ns > 10**18 and found.st_ctime_ns > changed
    root.remount()
    assert os.stat(path).st_mtime_ns == found.st_mtime_ns, "mtime changes with the remount"


def test_modes(root):
    path = root.join("f")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o640))
    for mode in (0o600, 0o4755, 0o2711, 0o1777, 0o000, 0o644):
        os.chmod(path, mode)
        assert stat.S_IMODE(os.stat(path).st_mode) == mode
    os.chmod(path, 0o751)
    os.mkdir(root.join("d"), 0o700)
    root.remount()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o751
    assert stat.S_IMODE(os.stat(root.join("d")).st_mode) == 0o700


@pytest.mark.needs_root
def test_owners(root):
    write_file(root.join("f"), b"x")
    os.chown(root.join("f"), 1234, 5678)
    os.mkdir(root.join("d"))
    os.chown(root.join("d"), 65534, 65534)
    os.symlink("x", root.join("s"))
    os.lchown(root.join("s"), 42, 43)

    def check():
        assert (os.stat(root.join("f")).st_uid, os.stat(root.join("f")).st_gid) == (1234, 5678)
        assert (os.stat(root.join("d")).st_uid, os.stat(root.join("d")).st_gid) == (65534, 65534)
        assert (os.lstat(root.join("s")).st_uid, os.lstat(root.join("s")).st_gid) == (42, 43)

    root.check_everywhere(check)


@pytest.mark.needs_root
def test_writing_and_chown_drop_setuid(root):
    path = root.join("f")
    write_file(path, b"x")
    os.chown(path, 65534, 65534)
    os.chmod(path, 0o6755)
    os.chown(path, 1000, 1000)
    assert stat.S_IMODE(os.stat(path).st_mode) & 0o6000 == 0, "chown keeps set-id bits"


@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["write", "truncate", "allocate", "copy"])
def test_changes_by_who_may_not_drop_setuid(how, new_mount):
    mount = new_mount({"allow_other": None})
    os.chmod(mount.path, 0o777)
    path = os.path.join(mount.path, "f")

    def other():
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
        write_file(path, b"x")
        os.chmod(path, 0o6755)
        if how == "truncate":
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        elif how in ("allocate", "copy"):
            write_file(f"{path}.source", b"yy")
            source, target = os.open(f"{path}.source", os.O_RDONLY), os.open(path, os.O_WRONLY)
            if how == "allocate":
                os.posix_fallocate(target, 0, 100)
            else:
                assert os.copy_file_range(source, target, 2) == 2
            os.close(source)
            os.close(target)
        else:
            write_file(path, b"y", os.O_WRONLY)

    in_process(other)
    # As stat(1) asks: for the mode alone, which the kernel has.
    shown = subprocess.run(["stat", "-c", "%a", path], capture_output=True, text=True, check=True).stdout
    assert shown == "755\n"
    mount.remount()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755

    os.chmod(path, 0o6755)
    write_file(path, b"root keeps them")
    target = os.open(path, os.O_WRONLY)
    os.posix_fallocate(target, 0, 100)
    os.close(target)
    mount.remount()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o6755


def test_st_blocks_count_what_was_written(root):
    path = root.join("f")
    write_file(path, payload("blocks", MIB))

    def check():
        assert MIB // 512 <= os.stat(path).st_blocks <= MIB // 512 + 16

    root.check_everywhere(check)


def test_special_files(root):
    os.mkfifo(root.join("fifo"), 0o600)
    root.check_everywhere(lambda: stat.S_ISFIFO(os.lstat(root.join("fifo")).st_mode) or pytest.fail("not a fifo"))
    os.unlink(root.join("fifo"))


def test_mknod_makes_a_regular_file(root):
    os.mknod(root.join("node"), stat.S_IFREG | 0o640)
    found = os.stat(root.join("node"))
    assert stat.S_ISREG(found.st_mode) and found.st_size == 0


# --- xattrs ---


def test_xattrs_set_list_remove_and_carry(root):
    path = root.join("f")
    write_file(path, b"x")
    values = {
        "user.small": b"v",
        "user.empty": b"",
        "user.binary": bytes(range(256)),
        "user.big": payload("xattr", 2000),
    }
    for name, value in values.items():
        os.setxattr(path, name, value)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.small", b"w", os.XATTR_CREATE)
    with pytest.raises(OSError) as caught:
        os.setxattr(path, "user.none", b"w", os.XATTR_REPLACE)
    assert caught.value.errno == errno.ENODATA
    os.setxattr(path, "user.small", b"w", os.XATTR_REPLACE)
    values["user.small"] = b"w"
    write_file(root.join("old"), b"replaced")
    os.setxattr(root.join("old"), "user.old", b"gone with its file")
    os.rename(path, root.join("old"))

    def check():
        assert {
            name
            for name in os.listxattr(root.join("old"))
            if name.startswith("user.") and not name.startswith("user.kvcachefs.")
        } == set(values)
        for name, value in values.items():
            assert os.getxattr(root.join("old"), name) == value

    root.check_everywhere(check)
    os.removexattr(root.join("old"), "user.big")
    with pytest.raises(OSError) as caught:
        os.removexattr(root.join("old"), "user.big")
    assert caught.value.errno == errno.ENODATA
    os.mkdir(root.join("d"))
    os.setxattr(root.join("d"), "user.dir", b"1")
    root.remount()
    assert os.getxattr(root.join("d"), "user.dir") == b"1"
    assert "user.big" not in os.listxattr(root.join("old"))


@pytest.mark.needs_root
@pytest.mark.needs_daemon
def test_file_capabilities_are_refused(root):
    """Not kept, so not accepted: the kernel asks for them before writes, and is answered without a look."""
    path = root.join("f")
    write_file(path, b"x")
    net_raw = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)  # VFS_CAP_REVISION_2, effective; CAP_NET_RAW
    with pytest.raises(OSError) as caught:
        os.setxattr(path, "security.capability", net_raw)
    assert caught.value.errno == errno.EOPNOTSUPP
    assert "security.capability" not in os.listxattr(path)


@pytest.mark.needs_root
@pytest.mark.needs_daemon
def test_labels_of_selinux_are_refused(root):
    """Who asks for one is told that there are none: so none is taken, either."""
    path = root.join("f")
    write_file(path, b"x")
    for call in (lambda: os.setxattr(path, "security.selinux", b"label"), lambda: os.getxattr(path, "security.selinux")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EOPNOTSUPP
    assert "security.selinux" not in os.listxattr(path)


def test_xattrs_stay_when_the_body_is_rewritten(root):
    path = root.join("f")
    write_file(path, b"one")
    os.setxattr(path, "user.tag", b"tag")
    root.remount()
    write_file(path, b"two!")
    root.check_everywhere(lambda: assert_bytes(os.getxattr(path, "user.tag"), b"tag", "xattr"))


# --- locks ---


def test_flock_between_processes(root):
    path = root.join("lock")
    write_file(path, b"")
    with Gate(2) as locked, Gate(2) as tried:

        def holder():
            fd = os.open(path, os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX)
            locked.wait()
            tried.wait()

        def other():
            fd = os.open(path, os.O_RDWR)
            locked.wait()
            try:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with pytest.raises(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                tried.wait()
            fcntl.flock(fd, fcntl.LOCK_EX)  # comes when the holder has ended

        in_processes([(holder,), (other,)])


def test_fcntl_record_locks_between_processes(root):
    path = root.join("lock")
    write_file(path, b"x" * 100)
    with Gate(2) as locked, Gate(2) as tried:

        def holder():
            fd = os.open(path, os.O_RDWR)
            fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
            locked.wait()
            tried.wait()

        def other():
            fd = os.open(path, os.O_RDWR)
            locked.wait()
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)  # beside it
                with pytest.raises((BlockingIOError, PermissionError)):
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 25)
                query = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
                answer = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, query))
                assert answer[0] == fcntl.F_WRLCK and (answer[2], answer[3]) == (20, 10)
            finally:
                tried.wait()
            fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)

        in_processes([(holder,), (other,)])


# --- descriptors ---


def test_dup_descriptors_share_the_file_and_flush_once_each(root):
    path = root.join("f")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    other = os.dup(fd)
    os.write(fd, b"first ")
    os.close(fd)  # FLUSH, and the handle lives on
    os.write(other, b"second")
    assert read_once(path, 100) == b"first second"
    os.close(other)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"first second", "f"))


def test_inherited_descriptor_is_written_after_the_parents_close(root):
    path = root.join("f")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with Gate(2) as closed:

        def child():
            closed.wait()
            os.write(fd, b"by the child")
            os.close(fd)

        running = Child(child)
        os.close(fd)
        closed.wait()
        running.result()
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"by the child", "f"))


def test_append_of_several_processes(root):
    path = root.join("log")
    write_file(path, b"")

    def append(letter):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        for _ in range(200):
            assert os.write(fd, letter * 100) == 100
        os.close(fd)

    # Within one process the kernel's inode lock makes appends atomic; so it does between processes of one machine.
    in_processes([(append, letter) for letter in (b"a", b"b", b"c")])

    def check():
        body = read_once(path, 100_000)
        assert len(body) == 60_000
        for start in range(0, len(body), 100):
            assert len(set(body[start : start + 100])) == 1, "appends overwrote each other"
        assert sorted(set(body)) == [97, 98, 99]

    root.check_everywhere(check)


def test_pread_pwrite_at_odd_offsets(root):
    path, size = root.join("odd"), 5 * MIB + 321
    model = bytearray(size)
    chooser = random.Random(11)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    for index in range(300):
        length = chooser.randrange(1, 60_000)
        offset = chooser.randrange(size - length)
        piece = payload(f"odd/{index}", length)
        os.pwrite(fd, piece, offset)
        model[offset : offset + length] = piece
        length = chooser.randrange(1, 60_000)
        offset = chooser.randrange(size + 1000)
        assert_bytes(os.pread(fd, length, offset), model[offset : offset + length], f"pread of {length} at {offset}")
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, size + 1), model, "odd"))


def test_fsync_and_fdatasync(root):
    path = root.join("a")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, payload("a", 100_000))
    os.fsync(fd)
    os.write(fd, b"tail")
    os.fdatasync(fd)
    os.close(fd)
    directory = os.open(root.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 200_000), payload("a", 100_000) + b"tail", "a"))


@pytest.mark.needs_daemon
def test_fsync_and_synced_writes_outlive_the_daemon(root):
    """Nothing but the write itself: it is not closed, and the daemon gets kill -9 behind its answer."""
    flags = {"fsync": 0, "O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC, "O_APPEND": os.O_DSYNC | os.O_APPEND, "RWF_DSYNC": 0}
    fds = {name: os.open(root.join(name), os.O_WRONLY | os.O_CREAT | each) for name, each in flags.items()}
    for name, fd in fds.items():
        for piece in (payload(name, 100_000), b"tail"):
            if name == "RWF_DSYNC":
                os.pwritev(fd, [piece], os.fstat(fd).st_size, os.RWF_DSYNC)
            else:
                os.write(fd, piece)
    os.fsync(fds["fsync"])
    root.mount.kill()
    root.mount.start()
    for fd in fds.values():
        with contextlib.suppress(OSError):  # ENOTCONN: its mount is gone
            os.close(fd)
    for name in fds:
        assert_bytes(read_once(root.join(name), 200_000), payload(name, 100_000) + b"tail", name)


def test_open_flags(root):
    path = root.join("f")
    write_file(path, b"content")
    with pytest.raises(FileExistsError):
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        os.write(fd, b"x")
    assert caught.value.errno == errno.EBADF
    os.close(fd)
    fd = os.open(path, os.O_WRONLY)
    with pytest.raises(OSError) as caught:
        os.read(fd, 1)
    assert caught.value.errno == errno.EBADF
    os.close(fd)
    with pytest.raises(NotADirectoryError):
        os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fd = os.open(path, os.O_PATH)
    assert os.fstat(fd).st_size == 7
    os.close(fd)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    assert os.read(fd, 100) == b"content"
    os.close(fd)


def test_a_file_created_read_only_can_still_be_written_by_its_creator(root):
    """open(O_CREAT|O_RDWR, 0444): the mode concerns later opens."""
    path = root.join("ro")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o444)
    os.write(fd, b"written")
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 10), b"written", "ro"))


def test_empty_files(root):
    for index in range(20):
        os.close(os.open(root.join(f"e{index}"), os.O_WRONLY | os.O_CREAT))
    os.rename(root.join("e0"), root.join("renamed"))

    def check():
        assert len(os.listdir(root.path)) == 20
        assert os.stat(root.join("renamed")).st_size == 0 and read_once(root.join("renamed"), 10) == b""

    root.check_everywhere(check)


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 4097, 64 * KIB, 256 * KIB, 256 * KIB + 1, MIB - 1, 9 * MIB + 5])
def test_bodies_of_every_size_class(size, root):
    """Inline, packed and solo bodies, around the checksum granule and the page."""
    body = payload(f"class{size}", size)

    def put():
        for index in range(3):
            write_file(root.join(f"f{index}"), body)

    in_process(put)

    def check():
        for index in range(3):
            assert os.stat(root.join(f"f{index}")).st_size == size
            assert_bytes(read_once(root.join(f"f{index}"), size + 100), body, "body")
            middle = size // 2
            assert_bytes(read_once(root.join(f"f{index}"), size, 0, middle), body[middle:], "from the middle")

    root.check_everywhere(check)


def test_mapping_of_a_file_of_odd_size_ends_in_zeros(root):
    path = root.join("odd")
    write_file(path, b"z" * 5000)

    def check():
        fd = os.open(path, os.O_RDONLY)
        mapping = Mapping(fd, 8192, shared=False, writable=False)
        os.close(fd)
        assert_bytes(mapping.read(), b"z" * 5000 + bytes(3192), "the rest of the last page")
        mapping.close()

    root.check_everywhere(check)
