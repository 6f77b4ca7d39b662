"""What the kernel takes part in: set-id bits, its own truncation after a write that failed, holes, shared mappings."""

import ctypes
import errno
import mmap
import os
import struct
import threading
import time

import pytest

from kvc_env import KIB, MIB
from kvc_mount import SOON, wait_until
from kvc_process import in_process

pytestmark = [pytest.mark.needs_daemon, pytest.mark.needs_root]

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def aligned(size, byte):
    memory = mmap.mmap(-1, size)
    memory.write(byte * size)
    return memory


def aio_write(fd, memory):
    """One write by libaio, at offset 0."""
    context = ctypes.c_ulong()
    assert libc.syscall(206, 8, ctypes.byref(context)) == 0
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    block = ctypes.create_string_buffer(struct.pack("QIiHhIQQqQII", 1, 0, 0, 1, 0, fd, address, len(memory), 0, 0, 0, 0))
    blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    event = ctypes.create_string_buffer(32)
    try:
        assert libc.syscall(209, context, 1, blocks) == 1
        assert libc.syscall(208, context, 1, 1, event, 0) == 1
    finally:
        libc.syscall(207, context)
    result = struct.unpack_from("QQqq", event)[2]
    if result < 0:
        raise OSError(-result, "libaio")
    return result


CHANGES = {
    "write": (0, lambda fd: os.write(fd, b"x")),
    "direct": (os.O_DIRECT, lambda fd: os.write(fd, aligned(4096, b"x"))),
    "ftruncate": (0, lambda fd: os.ftruncate(fd, 100)),
    "O_TRUNC": (os.O_TRUNC, lambda fd: None),
    "fallocate": (0, lambda fd: fallocate(fd, 0, 0, 65536)),
    "punch": (0, lambda fd: fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 4096)),
    "zero range": (0, lambda fd: fallocate(fd, ZERO_RANGE | KEEP_SIZE, 0, 4096)),
    "nothing": (0, lambda fd: None),
}


def modes_after_changes(directory):
    """By change, mode before and caller (user, group, further groups) of a file of user and group 1000: the mode afterwards."""
    found = {}
    path = os.path.join(directory, "f")
    for name, (flags, change) in CHANGES.items():
        for mode in (0o6666, 0o6777, 0o2676):
            for user, group, groups in ((1000, 1000, []), (1000, 1001, [1000]), (1001, 1001, [])):
                fd = os.open(path, os.O_CREAT | os.O_RDWR)
                os.write(fd, b"a" * 8192)
                os.close(fd)
                os.chown(path, 1000, 1000)
                os.chmod(path, mode)
                child = os.fork()
                if child == 0:
                    try:
                        os.setgroups(groups)
                        os.setgid(group)
                        os.setuid(user)
                        fd = os.open(path, os.O_RDWR | flags)
                        change(fd)
                        os.close(fd)
                    except OSError:
                        os._exit(1)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0, (name, oct(mode), user)
                found[name, oct(mode), user, group] = oct(os.stat(path).st_mode & 0o7777)
                os.unlink(path)
    return found


def test_set_id_bits_go_as_in_a_plain_directory(new_mount, tmp_path):
    mount = new_mount({"allow_other": None})
    os.chmod(mount.path, 0o777)
    plain = os.path.join(tmp_path, "plain")
    os.mkdir(plain)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        os.chmod(parent, os.stat(parent).st_mode | 0o055)
    assert modes_after_changes(mount.path) == modes_after_changes(plain)


def test_root_keeps_a_set_group_id_bit_that_nobody_runs(new_mount, tmp_path):
    """Of a group that root is not in; as the kernel has it for CAP_FSETID."""
    mount = new_mount()
    for directory in (str(tmp_path), mount.path):
        path = os.path.join(directory, "f")
        with open(path, "wb") as file:
            file.write(b"x")
        os.chown(path, 1, 1)
        os.chmod(path, 0o2761)
        os.chown(path, 2, -1)
        os.stat(path)
        time.sleep(1.1)  # attributes that the kernel made up itself
        assert os.stat(path).st_mode & 0o7777 == 0o2761, directory


WRITES = {
    "write": (0, lambda fd, memory: os.write(fd, memory)),
    "O_DIRECT": (os.O_DIRECT, lambda fd, memory: os.write(fd, memory)),
    "libaio": (0, aio_write),
    "libaio O_DIRECT": (os.O_DIRECT, aio_write),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_that_failed_publishes_nothing(new_mount, how):
    mount = new_mount({"capacity": "32M", "keep_free": "1M", "evict": "off"})
    flags, write = WRITES[how]
    memory = aligned(4 * MIB, b"x")
    for count in range(100):  # until nothing fits
        fd = os.open(os.path.join(mount.path, f"fill{count}"), os.O_CREAT | os.O_WRONLY)
        try:
            if os.write(fd, memory) < len(memory):
                break
        except OSError as error:
            assert error.errno == errno.ENOSPC
            break
        finally:
            try:
                os.close(fd)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    fd = os.open(os.path.join(mount.path, "t.tmp"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC | flags)
    try:
        assert write(fd, memory) < len(memory)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    with pytest.raises(OSError):
        os.close(fd)
    with pytest.raises(OSError):
        os.rename(os.path.join(mount.path, "t.tmp"), os.path.join(mount.path, "final"))
    assert not os.path.exists(os.path.join(mount.path, "final"))


def test_holes_are_exact_to_a_page_also_from_the_volume(new_mount):
    mount = new_mount({"prefetch": "off"})
    path = os.path.join(mount.path, "f")
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(fd, b"d" * MIB)
    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 8192, 4096)
    fallocate(fd, ZERO_RANGE, 300 * KIB, 4096)

    def check(fd):
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 8192
        assert os.lseek(fd, 8192, os.SEEK_DATA) == 12288
        assert os.lseek(fd, 12288, os.SEEK_HOLE) == 300 * KIB
        assert os.lseek(fd, 300 * KIB, os.SEEK_DATA) == 304 * KIB
        assert os.lseek(fd, 304 * KIB, os.SEEK_HOLE) == MIB

    check(fd)
    os.close(fd)
    os.setxattr(mount.path, "user.kvcachefs.flush", b"1")
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    fd = os.open(path, os.O_RDONLY)
    check(fd)
    os.close(fd)


def test_a_mapping_and_writes_in_turn_see_each_other(new_mount):
    """In turn they do, without msync too; at the same moment in one page they do not (fs/README.md, "Three exceptions to POSIX")."""
    mount = new_mount()
    fd = os.open(os.path.join(mount.path, "f"), os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, MIB)
    with mmap.mmap(fd, MIB) as mapping:
        for turn in range(200):
            at = turn * 4096 % MIB
            mapping[at : at + 8] = b"mapping%d" % (turn % 10)
            os.pwrite(fd, b"written%d" % (turn % 10), at + 100)
            mapping[at + 200 : at + 208] = b"further%d" % (turn % 10)
            page = os.pread(fd, 4096, at)
            assert page[:8] == mapping[at : at + 8] == b"mapping%d" % (turn % 10)
            assert page[100:108] == mapping[at + 100 : at + 108] == b"written%d" % (turn % 10)
            assert page[200:208] == mapping[at + 200 : at + 208] == b"further%d" % (turn % 10)
    os.close(fd)


def test_a_mapping_and_writes_at_the_same_time_in_pages_of_their_own(new_mount):
    mount = new_mount()
    fd = os.open(os.path.join(mount.path, "f"), os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, MIB)
    mapping = mmap.mmap(fd, MIB)

    def store():
        for at in range(0, MIB, 8192):
            mapping[at : at + 4096] = b"m" * 4096

    threads = [threading.Thread(target=store) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(4096, MIB, 8192):
        os.pwrite(fd, b"w" * 4096, at)
    for thread in threads:
        thread.join()
    assert os.pread(fd, MIB, 0) == (b"m" * 4096 + b"w" * 4096) * 128
    mapping.close()
    os.close(fd)


def close_after_a_crash(fd):
    with pytest.raises(OSError):
        os.close(fd)


def run_a_program():
    """Its process has the descriptors of this one until it executes the program, which closes them."""
    assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]) == 0


def test_a_program_that_a_writer_runs_meanwhile_does_not_end_its_file(new_mount):
    mount = new_mount({"durability": "close"})
    path = os.path.join(mount.path, "chunk.bin")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.pwrite(fd, b"1" * 64 * KIB, 0)
    run_a_program()
    mount.drain()  # what is written out is what is finished
    mount.kill()
    mount.start()
    close_after_a_crash(fd)
    assert not os.path.exists(path), os.path.getsize(path)

    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.pwrite(fd, b"1" * 64 * KIB, 0)
    run_a_program()
    os.pwrite(fd, b"2" * 64 * KIB, 64 * KIB)
    os.close(fd)
    mount.kill()
    mount.start()
    with open(path, "rb") as file:
        assert file.read() == b"1" * 64 * KIB + b"2" * 64 * KIB


def test_what_a_child_wrote_with_a_descriptor_of_its_parent_is_there_when_it_has_closed_it(new_mount):
    mount = new_mount({"durability": "close"})
    path = os.path.join(mount.path, "output")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, b"parent\n")
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "echo child"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, fd, 1)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mount.kill()
    mount.start()
    with open(path, "rb") as file:
        assert file.read() == b"parent\nchild\n"
    close_after_a_crash(fd)


@pytest.mark.parametrize("kind", ["directory", "fifo", "file"])
def test_attributes_are_changed_by_descriptor_after_a_removal(root, kind):
    """Twice, and in a thread that was told of no other object that is gone."""
    path = os.path.join(root.path, kind)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        open(path, "wb").close()
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        (os.rmdir if kind == "directory" else os.unlink)(path)
        for mode in (0o701, 0o740):
            os.fchmod(fd, mode)
            assert os.fstat(fd).st_mode & 0o7777 == mode
        os.fchown(fd, 1234, 1235)
        os.utime(fd, ns=(5_000_000_001, 6_000_000_002))
        found = os.fstat(fd)
        assert (found.st_uid, found.st_gid, found.st_atime_ns, found.st_mtime_ns) == (1234, 1235, 5_000_000_001, 6_000_000_002)
        assert found.st_nlink == 0
    finally:
        os.close(fd)


def test_trusted_attributes_are_listed_to_root_alone(new_mount):
    mount = new_mount({"allow_other": True})
    path = os.path.join(mount.path, "file")
    with open(path, "wb"):
        pass
    os.setxattr(path, "user.seen", b"1")
    os.setxattr(path, "trusted.hidden", b"1")
    assert sorted(os.listxattr(path)) == ["trusted.hidden", "user.seen"]
    fd = os.open(path, os.O_RDONLY)

    def as_user():
        os.setresuid(65534, 65534, 65534)
        return os.listxattr(fd)

    assert in_process(as_user) == ["user.seen"]
    os.close(fd)


def test_a_file_that_a_thread_wrote_before_it_ended_is_not_emptied_by_another_program(new_mount):
    """A thread pool writes in one thread and renames in another."""
    mount = new_mount({})
    kept_seconds, tries = 10, 5  # the file of a thread that ended is kept for so long after its last write

    def write(path, byte, size):
        with open(path, "wb") as file:
            file.write(byte * size)

    def seconds_to_write_twice(path):
        begun = time.monotonic()
        thread = threading.Thread(target=write, args=(path, b"a", 100 * KIB))
        thread.start()
        thread.join()
        wait_until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"), SOON, "the thread ends")
        in_process(write, path, b"b", 70 * KIB)
        return time.monotonic() - begun

    for number in range(tries):
        temporary, final = os.path.join(mount.path, f"x{number}.tmp"), os.path.join(mount.path, f"x{number}")
        in_time = seconds_to_write_twice(temporary) < kept_seconds / 2
        os.rename(temporary, final)
        with open(final, "rb") as file:
            data = file.read()
        if in_time or data == b"a" * 100 * KIB:
            break
    assert data == b"a" * 100 * KIB
