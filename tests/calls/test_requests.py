"""What the kernel really sends for the clients' calls, and the rules that follow from it."""

import errno
import fcntl
import mmap
import os
import struct

import pytest

import kvc_mount
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_native import Mapping, aligned
from kvc_process import Child, ChildFailed, Gate, in_process, in_processes
from sequences import read_once

SIZE = 4 * MIB
UNALIGNED = pytest.mark.beyond_plain(unless="its file system takes O_DIRECT at any alignment")


def mmap_put(path, data, close_first=True):
    """The traced put: CREATE, WRITE(0,4096), FLUSH, RELEASE; OPEN(O_RDWR), SETATTR size, FLUSH, READs of the hole, WRITEs at munmap, RENAME."""
    temp = f"{path}.tmp"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, data[:4096])
    os.close(fd)
    fd = os.open(temp, os.O_RDWR)
    os.ftruncate(fd, len(data))
    mapping = Mapping(fd, len(data), shared=True, writable=True)
    if close_first:
        os.close(fd)
    mapping.write(4096, data[4096:])
    mapping.close()
    if not close_first:
        os.close(fd)
    os.rename(temp, path)


@pytest.mark.parametrize("close_first", [True, False], ids=["closed-before-data", "closed-after-data"])
def test_mmap_put(close_first, root):
    body = payload("mmap", SIZE)
    in_process(mmap_put, root.join("chunk"), body, close_first)
    root.check_everywhere(lambda: assert_bytes(read_once(root.join("chunk"), SIZE), body, "chunk"))


def test_mmap_put_renamed_while_mapped(root):
    """munmap after the rename: the write-back comes for a name that is published already, and must arrive."""
    body = payload("late", SIZE)
    path = root.join("chunk")

    def put():
        fd = os.open(f"{path}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.ftruncate(fd, SIZE)
        mapping = Mapping(fd, SIZE, shared=True, writable=True)
        os.close(fd)
        mapping.write(0, body[:MIB])
        os.rename(f"{path}.tmp", path)
        mapping.write(MIB, body[MIB:])
        mapping.close()

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(read_once(path, SIZE), body, "chunk"))


def test_mmap_put_by_a_process_that_exits_without_munmap(root):
    body = payload("exit", SIZE)
    path = root.join("chunk")

    def put():
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, SIZE)
        Mapping(fd, SIZE, shared=True, writable=True).write(0, body)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(read_once(path, SIZE), body, "chunk"))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "private"])
def test_reading_a_hole_through_a_mapping_never_kills(shared, root):
    """EIO on a hole READ would be SIGBUS in the engine."""
    path = root.join("sparse")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 * MIB)
    os.pwrite(fd, b"island", 5 * MIB + 100)
    os.close(fd)

    def read():
        fd = os.open(path, os.O_RDONLY)
        mapping = Mapping(fd, 8 * MIB, shared=shared, writable=False)
        os.close(fd)
        expected = bytearray(8 * MIB)
        expected[5 * MIB + 100 : 5 * MIB + 106] = b"island"
        assert_bytes(mapping.read(), expected, "sparse file")
        mapping.close()

    root.check_everywhere(read)


def test_reading_a_hole_that_is_being_written(root):
    """One process maps and reads the hole while another fills it: zeros or data, no signal; at the end the data."""
    path, body = root.join("filling"), payload("filling", SIZE)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, SIZE)

    def write():
        for start in range(0, SIZE, 64 * KIB):
            os.pwrite(fd, body[start : start + 64 * KIB], start)

    def read():
        reader = os.open(path, os.O_RDONLY)
        for _ in range(4):
            mapping = Mapping(reader, SIZE, shared=True, writable=False)
            found = mapping.read()
            mapping.close()
            for start in range(0, SIZE, 64 * KIB):
                piece = found[start : start + 64 * KIB]
                for page in range(0, len(piece), 4096):
                    got = piece[page : page + 4096]
                    want = body[start + page : start + page + 4096]
                    assert got == want or all(
                        byte in (0, good) for byte, good in zip(got, want)
                    ), "neither the hole nor the data"
        os.close(reader)

    in_processes([(write,), (read,), (read,)])
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, SIZE), body, "filled"))


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["buffered", "odirect"])
def test_shared_writable_mapping_of_any_open(flags, root):
    """FOPEN_DIRECT_IO alone would answer ENODEV."""
    path = root.join("mapped")
    body = payload("mapped", SIZE)

    def run():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | flags)
        os.ftruncate(fd, SIZE)
        mapping = Mapping(fd, SIZE, shared=True, writable=True)
        mapping.write(0, body)
        mapping.sync()
        assert_bytes(read_once(path, SIZE), body, "read(2) after msync")
        mapping.close()
        os.close(fd)

    in_process(run)
    root.check_everywhere(lambda: assert_bytes(read_once(path, SIZE), body, "mapped"))


def test_write_calls_are_seen_through_a_shared_mapping(root):
    path = root.join("coherent")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, MIB)

    def run():
        mapping = Mapping(fd, MIB, shared=True, writable=True)
        assert mapping.read(1000, 4) == bytes(4)
        os.pwrite(fd, b"call", 1000)
        assert mapping.read(1000, 4) == b"call"
        mapping.write(2000, b"page")
        mapping.sync()
        assert os.pread(fd, 4, 2000) == b"page"
        mapping.close()

    in_process(run)
    os.close(fd)


@pytest.mark.parametrize(
    "size", [64 * KIB, pytest.param(3 * MIB + 4097, marks=UNALIGNED), 36 * MIB], ids=["64k", "3m", "36m"]
)
def test_big_reads_by_every_way(size, root):
    """Buffered reads arrive as 128 KiB to 1 MiB requests, O_DIRECT ones as 1 MiB, mappings as read-ahead: all the same bytes."""
    path, body = root.join("big"), payload(f"big{size}", size)

    def put():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        assert os.write(fd, body) == size
        os.close(fd)

    def check():
        assert_bytes(read_once(path, size + 1), body, "one buffered read")
        assert_bytes(read_once(path, size + 1, os.O_DIRECT), body, "one O_DIRECT read")
        fd = os.open(path, os.O_RDONLY)
        for populate in (True, False):
            for shared in (True, False):
                mapping = Mapping(fd, size, shared=shared, writable=False, populate=populate)
                assert_bytes(mapping.read(), body, f"mapping, populate={populate}, shared={shared}")
                mapping.close()
        os.lseek(fd, 0, os.SEEK_SET)
        pieces = []
        while piece := os.read(fd, 100_001):
            pieces.append(piece)
        assert_bytes(b"".join(pieces), body, "small reads in order")
        os.close(fd)

    in_process(put)
    root.check_everywhere(check)


def test_capability_probe_does_not_switch_xattrs_off(root):
    """Writes make the kernel ask for security.capability: ENODATA, never ENOSYS, after which every xattr of the mount would be refused."""
    path = root.join("file")
    with open(path, "wb") as file:
        file.write(b"x" * 10)
        with pytest.raises(OSError) as caught:
            os.getxattr(path, "security.capability")
        assert caught.value.errno == errno.ENODATA
        file.write(b"y")
    os.setxattr(path, "user.after", b"works")
    assert os.getxattr(path, "user.after") == b"works"
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "user.absent")
    assert caught.value.errno == errno.ENODATA


@pytest.mark.parametrize("size", [256 * KIB, 9 * MIB], ids=["256k", "9m"])
def test_populated_private_mapping_outlives_close_unlink_and_reuse(size, root):
    """RELEASE does not mean unmapped: what was mapped stays readable after close, unlink and whatever reuses the space."""
    path, body = root.join("mapped"), payload("outlives", size)

    def run():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(fd, body)
        os.close(fd)
        root.mount.drain()
        fd = os.open(path, os.O_RDONLY)
        populated = Mapping(fd, size, shared=False, writable=True, populate=True)
        lazy = Mapping(fd, size, shared=False, writable=False)
        os.close(fd)
        os.unlink(path)
        for index in range(12):
            with open(root.join(f"reuse{index}"), "wb") as file:
                file.write(payload(f"reuse{index}", size))
        root.mount.drain()
        assert_bytes(populated.read(), body, "populated mapping")
        assert_bytes(lazy.read(), body, "lazy mapping")
        populated.write(0, b"mine")
        assert populated.read(0, 4) == b"mine"
        populated.close()
        lazy.close()

    in_process(run)


def test_mapping_keeps_its_bytes_when_the_name_is_replaced(root):
    path = root.join("chunk")
    old, new = payload("old", SIZE), payload("new", SIZE)

    def run():
        for body in (old, new):
            with open(f"{path}.tmp", "wb") as file:
                file.write(body)
            if body is old:
                os.rename(f"{path}.tmp", path)
                root.mount.drain()
                fd = os.open(path, os.O_RDONLY)
                mapping = Mapping(fd, SIZE, shared=False, writable=False)
                assert mapping.read(0, 4096) == old[:4096]
            else:
                os.rename(f"{path}.tmp", path)
        root.mount.drain()
        assert_bytes(mapping.read(), old, "the mapping of the replaced file")
        assert_bytes(os.pread(fd, SIZE, 0), old, "the descriptor of the replaced file")
        assert_bytes(read_once(path, SIZE), new, "the name")
        os.close(fd)
        mapping.close()

    in_process(run)


def test_descriptor_opened_before_the_rename_reads_and_writes_on(root):
    path = root.join("chunk")
    fd = os.open(f"{path}.tmp", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"first")
    os.rename(f"{path}.tmp", path)
    os.pwrite(fd, b"second", 5)
    assert os.pread(fd, 100, 0) == b"firstsecond"
    assert read_once(path, 100) == b"firstsecond"
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"firstsecond", "chunk"))


def test_o_trunc_by_a_second_opener_of_a_published_name(root):
    """O_CREAT is stripped by the kernel: LOOKUP + OPEN(O_TRUNC) of a name that was published is a truncation, nothing else."""
    path = root.join("published")
    in_process(lambda: open(path, "wb").write(payload("one", MIB)))
    root.remount()

    def again():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        assert os.stat(path).st_size == 0
        os.write(fd, b"short")
        os.close(fd)

    in_process(again)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"short", "published"))


def test_rewritten_by_another_process_is_seen_by_the_first(root):
    """A file created under its final name is published by its last close: whoever rewrites it then, all see the new bytes."""
    path = root.join("final")

    def write(version):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, payload("final", MIB, version))
        os.close(fd)

    def first_writer(written, rewritten):
        write(0)
        written.wait()
        rewritten.wait()
        assert_bytes(read_once(path, 2 * MIB), payload("final", MIB, 1), "as its first writer sees it")

    def second_writer(written, rewritten):
        written.wait()
        write(1)
        rewritten.wait()
        assert_bytes(read_once(path, 2 * MIB), payload("final", MIB, 1), "as its second writer sees it")

    with Gate(2) as written, Gate(2) as rewritten:
        in_processes([(first_writer, written, rewritten), (second_writer, written, rewritten)])
    root.check_everywhere(lambda: assert_bytes(read_once(path, 2 * MIB), payload("final", MIB, 1), "rewritten"))


def test_renamed_by_a_third_process_after_it_was_rewritten(root):
    path = root.join("final")

    def write(version):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, payload("final", MIB, version))
        os.close(fd)

    in_process(write, 0)
    in_process(write, 1)
    os.rename(path, path + "2")
    assert not os.path.exists(path), "an older version shows under the name"
    root.check_everywhere(lambda: assert_bytes(read_once(path + "2", 2 * MIB), payload("final", MIB, 1), "renamed"))


def test_a_reader_with_the_file_open_while_it_is_rewritten(root):
    """A read-only descriptor lives while another process truncates and rewrites the name in place, and while a third opens it O_RDWR to read.
    Nobody meets an error; the reader sees the bytes it opened or the new ones, whole."""
    path = root.join("chunk")
    old, new = payload("v0", MIB), payload("v1", MIB)
    in_process(lambda: open(path, "wb").write(old))
    root.mount.drain()
    reader = os.open(path, os.O_RDONLY)
    assert_bytes(os.pread(reader, MIB, 0), old, "before")
    both = os.open(path, os.O_RDWR)
    assert_bytes(os.pread(both, MIB, 0), old, "O_RDWR reader")
    os.close(both)

    def rewrite():
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        os.write(fd, new)
        os.close(fd)

    in_process(rewrite)
    assert os.pread(reader, MIB, 0) in (old, new), "a mixture"
    os.close(reader)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 2 * MIB), new, "after"))


def test_o_rdwr_readers_do_not_change_anything(root):
    """Some clients open O_RDWR only to read."""
    path = root.join("chunk")
    in_process(lambda: open(path, "wb").write(payload("rdwr", MIB)))
    root.remount()
    before = os.stat(path)

    def read():
        fds = [os.open(path, os.O_RDWR) for _ in range(8)] + [os.open(path, os.O_RDONLY) for _ in range(8)]
        for fd in fds:
            assert_bytes(os.pread(fd, MIB, 0), payload("rdwr", MIB), "reader")
        for fd in fds:
            os.close(fd)

    in_processes([(read,), (read,)])
    after = os.stat(path)
    assert (before.st_size, before.st_mtime_ns, before.st_ino, before.st_blocks) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ino,
        after.st_blocks,
    )


# A hole, larger than what can be opened for a while after it was replaced. Holes are sealed as holes.
REPLACED_BYTES = 80 * MIB
CALLS_BY_NAME = {
    "utime": lambda path: os.utime(path),
    "chmod": lambda path: os.chmod(path, 0o640),
    "truncate": lambda path: os.truncate(path, REPLACED_BYTES),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"b"),
    "listxattr": lambda path: os.listxattr(path),
}


@pytest.mark.needs_daemon
@pytest.mark.parametrize("call", CALLS_BY_NAME.values(), ids=CALLS_BY_NAME)
def test_attributes_of_a_name_that_is_being_replaced(call, root):
    """The call finds the file, waits for the rename over it to end, and must go to the new one: the name is never absent."""
    path = root.join("chunk")
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    made, stop, ended = range(3)  # in it, 8 bytes each

    def get(field):
        return struct.unpack_from("=Q", shared, 8 * field)[0]

    def put(field, value):
        struct.pack_into("=Q", shared, 8 * field, value)

    def replace():
        with open(path + ".tmp", "wb") as file:
            file.truncate(REPLACED_BYTES)
        os.rename(path + ".tmp", path)

    def caller():
        try:
            while not get(stop):
                call(path)
                put(made, get(made) + 1)
        finally:
            put(ended, 1)

    replace()
    child = Child(caller)
    for _ in range(100):
        replace()
        before = get(made)
        # No call meets two renames: the kernel looks a name up again once.
        kvc_mount.wait_until(lambda: get(made) >= before + 2 or get(ended), kvc_mount.SOON, "the calls go on")
    put(stop, 1)
    child.result()


@pytest.mark.needs_root
def test_o_noatime_needs_the_owner(new_mount):
    mount = new_mount({"allow_other": None})
    os.chmod(mount.path, 0o777)
    path = os.path.join(mount.path, "mine")

    def owner():
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        with open(path, "wb") as file:
            file.write(b"x")
        os.chmod(path, 0o666)
        assert read_once(path, 1, os.O_NOATIME) == b"x"

    def stranger():
        os.setresuid(12345, 12345, 12345)
        assert read_once(path, 1) == b"x"
        with pytest.raises(PermissionError) as caught:
            os.open(path, os.O_RDONLY | os.O_NOATIME)
        assert caught.value.errno == errno.EPERM

    in_process(owner)
    assert os.stat(path).st_uid == 65534
    in_process(stranger)


def test_access_of_present_and_absent_names(root):
    path = root.join("present")
    for _ in range(3):
        assert not os.access(path, os.F_OK), "an absent name"
    open(path, "wb").close()
    assert os.access(path, os.F_OK), "absence was cached"
    os.unlink(path)
    assert not os.access(path, os.F_OK), "presence was cached after the unlink"


def test_names_made_by_another_process_are_seen_at_once(root):
    with Gate(2) as probed, Gate(2) as made:

        def prober():
            assert not any(os.path.exists(root.join(f"n{index}")) for index in range(100))
            probed.wait()
            made.wait()
            assert all(os.path.exists(root.join(f"n{index}")) for index in range(100))

        def maker():
            probed.wait()
            for index in range(100):
                with open(root.join(f"n{index}.tmp"), "wb") as file:
                    file.write(b"x")
                os.rename(root.join(f"n{index}.tmp"), root.join(f"n{index}"))
            made.wait()

        in_processes([(prober,), (maker,)])


@pytest.mark.parametrize("size", [1, 511, 4095, 4096, 4097, 100_003, MIB + 1])
@UNALIGNED
def test_o_direct_at_any_length_offset_and_buffer_alignment(size, root):
    path = root.join("unaligned")
    body = payload(f"unaligned{size}", size)

    def put():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        assert os.pwritev(fd, [aligned(body, shift=1)], 28) == size
        buffer = aligned(size, shift=3)
        assert os.preadv(fd, [buffer], 28) == size
        assert_bytes(buffer, body, "read back into an odd buffer")
        os.close(fd)

    in_process(put)

    def check():
        assert os.stat(path).st_size == 28 + size
        for flags in (0, os.O_DIRECT):
            fd = os.open(path, os.O_RDONLY | flags)
            buffer = aligned(size + 100, shift=7)
            assert os.preadv(fd, [buffer], 28) == size, "up to the end of the file"
            assert_bytes(buffer[:size], body, "body")
            buffer = aligned(64, shift=9)
            assert os.preadv(fd, [buffer], 0) == min(64, 28 + size)
            assert_bytes(buffer[:28], bytes(28), "the hole before")
            assert os.preadv(fd, [buffer], 28 + size) == 0, "at the end"
            assert os.preadv(fd, [buffer], 29 + size + 4096) == 0, "past the end"
            os.close(fd)

    root.check_everywhere(check)


@UNALIGNED
def test_o_direct_odd_pieces_make_one_whole(root):
    path, body = root.join("pieces"), payload("pieces", 2 * MIB + 77)
    steps = [1, 28, 4096, 511, 65_537, 1_000_000, 4095]

    def put():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        offset, index = 0, 0
        while offset < len(body):
            size = min(steps[index % len(steps)], len(body) - offset)
            assert os.pwritev(fd, [aligned(body[offset : offset + size], shift=index % 13)], offset) == size
            offset, index = offset + size, index + 1
        os.close(fd)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 3 * MIB), body, "pieces"))


def test_statvfs_falls_at_once_on_unlink(root):
    if root.mount.plain:
        pytest.skip("other users of the disk change its free space")
    paths = [root.join(f"f{index}") for index in range(4)]
    for index, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(payload(path, 8 * MIB))
    assert os.statvfs(root.path).f_bsize == 4096
    for drained in (False, True):
        if drained:
            root.mount.drain()
        before = os.statvfs(root.path)
        os.unlink(paths.pop())
        after = os.statvfs(root.path)
        assert (after.f_bavail - before.f_bavail) * after.f_frsize >= 7 * MIB, f"drained={drained}"
    # The bytes cut off come back when the shorter body is on the volume.
    before = os.statvfs(root.path)
    os.truncate(paths.pop(), 0)
    root.mount.drain()
    after = os.statvfs(root.path)
    assert (after.f_bavail - before.f_bavail) * after.f_frsize >= 7 * MIB, "truncate"


def test_reads_and_writes_are_never_short(root):
    """ONE write and ONE read of 64 MiB."""
    path, body = root.join("once"), payload("once", 64 * MIB)

    def put():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        assert os.write(fd, body) == len(body)
        os.close(fd)

    def get():
        assert_bytes(read_once(path, 64 * MIB), body, "one read")
        assert_bytes(read_once(path, 64 * MIB, os.O_DIRECT), body, "one O_DIRECT read")

    in_process(put)
    in_process(get)
    root.remount()
    in_process(get)


@pytest.mark.needs_daemon
def test_fstype_is_fuse_kvcachefs(root):
    entry = kvc_mount.mount_entry(root.mount.path)
    assert entry[0] == "fuse.kvcachefs"
    assert "default_permissions" in entry[2]


def test_missing_chunk_is_enoent_for_every_call(root):
    path = root.join("missing")
    for call in (
        lambda: os.open(path, os.O_RDONLY),
        lambda: os.open(path, os.O_RDWR),
        lambda: os.stat(path),
        lambda: os.unlink(path),
        lambda: os.rename(path, root.join("x")),
        lambda: os.truncate(path, 0),
        lambda: os.utime(path),
        lambda: os.getxattr(path, "user.a"),
        lambda: os.link(path, root.join("y")),
        lambda: os.readlink(path),
        lambda: os.listdir(path),
        lambda: os.rmdir(path),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_many_descriptors_of_one_file(root):
    path, body = root.join("many"), payload("many", 100_000)
    with open(path, "wb") as file:
        file.write(body)
    root.mount.drain()

    def run():
        fds = [os.open(path, os.O_RDONLY) for _ in range(500)]
        for index, fd in enumerate(fds):
            assert os.pread(fd, 100, index * 100) == body[index * 100 : index * 100 + 100]
        os.unlink(path)
        for index, fd in enumerate(fds):
            assert os.pread(fd, 100, index * 100) == body[index * 100 : index * 100 + 100]
            os.close(fd)

    in_process(run)


def test_ioctl_is_refused_cleanly(root):
    path = root.join("file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError) as caught:
        fcntl.ioctl(fd, 0xDEAD)
    assert caught.value.errno in (errno.ENOTTY, errno.ENOSYS, errno.EOPNOTSUPP)
    os.write(fd, b"still works")
    os.close(fd)


def test_a_killed_writer_leaves_an_unpublished_temp_only(root):
    """A client killed in the middle: its temp may stay (it is swept by age), the final name was never there."""

    def dies():
        fd = os.open(root.join("chunk.tmp"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, payload("dies", MIB))
        os.kill(os.getpid(), 9)

    with pytest.raises(ChildFailed):
        in_process(dies)
    assert not os.path.exists(root.join("chunk"))
    root.remount()
    assert not os.path.exists(root.join("chunk"))
