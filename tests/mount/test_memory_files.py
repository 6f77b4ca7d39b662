"""Big chunks in RAM are read past the daemon, from memory files; nothing that happens to the object reaches who reads one."""

import os

import pytest

import kvc_env
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, wait_until
from kvc_native import Mapping
from kvc_process import in_process
from test_memory import ALLOWANCE, resident_bytes
from test_passthrough import STYLES, SIZE, check_old_readers, cut, descriptors, put, read_buffered, read_direct, read_mapped, replace, rewrite

pytestmark = [pytest.mark.needs_daemon, pytest.mark.skipif(os.geteuid() != 0, reason="passthrough needs root")]


def make(new_mount, **options):
    """Packed on the volume, so that what is passed through can only be in RAM; of a size that is known by a first chunk."""
    mount = new_mount({"pack_below": "32M", "memory": "256M", "memory_file_min": "4M", **options})
    features = mount.status()["features"]
    if features["passthrough"] is not True or (options.get("memory_file_min") != "0" and features["memory_files"] is not True):
        mount.stop()
        pytest.skip("no passthrough or no memory files here")
    put(os.path.join(mount.path, "first"), payload("first", SIZE))
    return mount


@pytest.fixture(params=["4M", "0"], ids=["on", "off"])
def least(request):
    return request.param


@pytest.fixture
def mount(new_mount, least):
    return make(new_mount, memory_file_min=least)


def closed(mount):
    """Until the kernel has let go of writers: a file that is open otherwise is not passed through."""
    wait_until(lambda: mount.status()["objects"]["open_handles"] == 0, SOON, "all is closed")


def files_taken(mount):
    return mount.status()["memory"]["files_taken"]


def put_all(mount, names, size=SIZE):
    """Each in a memory file, where there are any. They are made ahead: who comes before one is ready goes without."""
    for name in names:
        path = os.path.join(mount.path, name)

        def lies_in_a_file():
            before = files_taken(mount)
            put(path, payload(name, size))
            if not mount.status()["features"]["memory_files"] or files_taken(mount) > before:
                return True
            os.unlink(path)
            return False

        wait_until(lies_in_a_file, SOON, f"{name} lies in a memory file")
    closed(mount)


@STYLES
@pytest.mark.parametrize("sealed", [False, True], ids=["staged", "sealed"])
def test_reads_of_what_was_just_written_do_not_pass_the_daemon(new_mount, least, read, sealed):
    mount = make(new_mount, memory_file_min=least, flush_interval_ms="100" if sealed else "60000")
    put_all(mount, ["one", "two"])
    if sealed:
        mount.drain()
    before = mount.status()["reads"]
    for name in ("one", "two", "one"):
        assert_bytes(in_process(read, os.path.join(mount.path, name)), payload(name, SIZE), name)
        closed(mount)
    after = mount.status()["reads"]
    passed = 3 if least != "0" else 0
    assert after["memory_file_opens"] == before["memory_file_opens"] + passed
    assert after["passthrough_opens"] == before["passthrough_opens"] + passed
    assert (after["requests"] == before["requests"]) == (least != "0")
    assert after["bytes_from_volume"] == before["bytes_from_volume"]


@pytest.mark.parametrize("size", [4 * MIB, 4 * MIB + 1, 9 * MIB - 1, 9 * MIB + 4 * KIB, 12 * MIB + 300_001])
def test_a_file_ends_where_its_chunk_ends(mount, least, size):
    put_all(mount, [f"teach{size}", f"again{size}", "odd"], size)
    path = os.path.join(mount.path, "odd")
    with open(path, "rb", buffering=0) as file:
        assert_bytes(file.read(size + MIB), payload("odd", size), "read past the end")
        assert os.pread(file.fileno(), 10, size) == b""
        assert os.fstat(file.fileno()).st_size == size
        mapping = Mapping(file.fileno(), size, shared=True, writable=False, populate=True)
        assert_bytes(mapping.read(), payload("odd", size), "mapped")
        mapping.close()
    assert mount.status()["reads"]["memory_file_opens"] == (1 if least != "0" else 0)
    mount.drain()
    mount.remount()
    assert_bytes(read_buffered(path, size + 1), payload("odd", size), "as it was sealed")


@pytest.mark.parametrize("change", [rewrite, replace, cut])
def test_old_readers_keep_the_bytes_they_opened(mount, least, change):
    put_all(mount, ["body"])
    check_old_readers(mount, change, keep=least != "0" or change is replace)


def test_a_page_changed_in_place(mount, least):
    """Copy on write of one unit; then the chunk is not whole in its file any more, until it is written anew."""
    put_all(mount, ["page"])
    path = os.path.join(mount.path, "page")
    for version in range(1, 6):
        with open(path, "rb", buffering=0) as reader:
            before = reader.read(SIZE)
            with open(path, "r+b", buffering=0) as writer:
                writer.seek(version * MIB + 17)
                writer.write(b"version %d" % version)
            after = bytearray(before)
            after[version * MIB + 17 : version * MIB + 26] = b"version %d" % version
            assert_bytes(in_process(read_buffered, path), bytes(after), f"version {version}")
        closed(mount)
    mount.drain()
    mount.remount()
    assert_bytes(read_buffered(path), bytes(after), "as it was sealed")


@pytest.mark.parametrize("how", ["unlink", "replace", "rewrite", "keep"])
def test_a_mapping_outlives_close_eviction_and_reclaim(mount, least, how):
    if least == "0" and how == "rewrite":
        pytest.skip("without passthrough a mapping shows the chunk as it is, cut short")
    names = [f"mapped{index}" for index in range(3)]
    put_all(mount, names)

    def run():
        held = []
        for index, name in enumerate(names):
            path = os.path.join(mount.path, name)
            fd = os.open(path, os.O_RDONLY)
            held.append((name, Mapping(fd, SIZE, shared=index % 2 == 0, writable=False, populate=index == 1)))
            os.close(fd)
        for name in names:
            path = os.path.join(mount.path, name)
            if how == "unlink":
                os.unlink(path)
            elif how == "replace":
                replace(path, f"instead of {name}")
            elif how == "rewrite":
                rewrite(path, f"over {name}")
        mount.drain()
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        for index in range(30):  # more than memory holds
            put(os.path.join(mount.path, f"filler{index}"), payload(f"filler{index}", SIZE))
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        for name, mapping in held:
            assert_bytes(mapping.read(), payload(name, SIZE), name)
            mapping.close()

    in_process(run)  # a page that is gone is a SIGBUS
    for index in range(30):
        assert_bytes(read_buffered(os.path.join(mount.path, f"filler{index}")), payload(f"filler{index}", SIZE), f"filler{index}")
    closed(mount)
    mount.drain()  # what is not on the volume yet stays, in the files that were read from just now
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    wait_until(lambda: mount.status()["memory"]["file_passed_bytes"] == 0, SOON, "the memory of what was mapped comes back")


def test_what_is_read_again_is_moved_into_files_ahead_of_its_reader(mount, least):
    names = [f"again{index:02}" for index in range(16)]
    for name in names:
        put(os.path.join(mount.path, name), payload(name, SIZE // 2))
    mount.drain()
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")

    def restore():
        for name in names:
            assert_bytes(read_buffered(os.path.join(mount.path, name)), payload(name, SIZE // 2), name)

    in_process(restore)
    assert mount.status()["memory"]["files_moved"] < len(names)  # it may have been the only time

    def moved():
        in_process(restore)
        return mount.status()["memory"]["files_moved"] > 0

    if least == "0":
        assert not moved()
    else:
        wait_until(moved, SOON, "bodies in RAM are moved ahead of their reader")
        in_process(restore)
        assert mount.status()["reads"]["memory_file_opens"] > 0


def test_mapped_files_hold_half_of_the_memory_at_most(new_mount):
    mount = make(new_mount)
    names = [f"held{index}" for index in range(14)]
    put_all(mount, names)
    held = []
    for name in names:
        path = os.path.join(mount.path, name)
        fd = os.open(path, os.O_RDONLY)
        held.append(Mapping(fd, SIZE, shared=True, writable=False, populate=True))
        os.close(fd)
    memory = mount.status()["memory"]
    assert 110 * MIB <= memory["file_passed_bytes"] <= 128 * MIB
    assert memory["used_bytes"] <= memory["limit_bytes"]
    # There is room left for others all the time.
    for index in range(12):
        put(os.path.join(mount.path, f"other{index}"), payload(f"other{index}", SIZE))
    for index in range(12):
        assert_bytes(read_buffered(os.path.join(mount.path, f"other{index}")), payload(f"other{index}", SIZE))
    for name, mapping in zip(names, held):
        assert_bytes(mapping.read(), payload(name, SIZE), name)
        mapping.close()
    closed(mount)
    mount.drain()  # what is not on the volume yet stays, in the files that were read from just now
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    wait_until(lambda: mount.status()["memory"]["file_passed_bytes"] == 0, SOON, "the memory of what was mapped comes back")


def test_what_is_mapped_from_a_pack_is_passed_through_the_next_time(mount, least):
    put_all(mount, ["packed"])
    mount.remount()
    path = os.path.join(mount.path, "packed")
    for read in (read_buffered, read_direct, read_buffered):
        assert_bytes(in_process(read, path), payload("packed", SIZE), "nobody maps yet: once more through the daemon")
    memory = mount.status()["memory"]
    assert (memory["files_taken"], memory["files_refused"]) == (0, 0), "nobody asked for a file"
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")

    def comes_into_a_file():
        read_mapped(os.path.join(mount.path, "first"))
        if least == "0" or files_taken(mount) > 0:
            return True
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        return False

    wait_until(comes_into_a_file, SOON, "files are made ahead for chunks of this size")
    wait_until(lambda: least == "0" or mount.status()["memory"]["file_spare_bytes"] >= SIZE, SOON, "one more is ready")
    assert_bytes(in_process(read_buffered, path), payload("packed", SIZE), "the first time")
    closed(mount)
    before = mount.status()["reads"]
    assert_bytes(in_process(read_buffered, path), payload("packed", SIZE), "the second time")
    after = mount.status()["reads"]
    assert after["bytes_from_volume"] == before["bytes_from_volume"]
    assert after["memory_file_opens"] == before["memory_file_opens"] + (1 if least != "0" else 0)


@pytest.mark.deadline(600)
def test_more_is_written_and_read_than_memory_holds(mount):
    """Every file is taken, given up, taken again, while some of them are mapped."""
    memory = mount.status()["memory"]["limit_bytes"]
    rounds, each = (3 if kvc_env.QUICK else 8), 12
    kept = []
    most = 0
    for turn in range(rounds):
        names = [f"chunk{(turn * each + index) % 40}" for index in range(each)]
        for name in names:
            put(os.path.join(mount.path, name), payload(name, SIZE, turn))
        for index, name in enumerate(names):
            path = os.path.join(mount.path, name)
            assert_bytes(read_buffered(path), payload(name, SIZE, turn), f"{name} in round {turn}")
            if index == turn % each:
                fd = os.open(path, os.O_RDONLY)
                kept.append((name, turn, Mapping(fd, SIZE, shared=True, writable=False, populate=False)))
                os.close(fd)
        status = mount.status()["memory"]
        assert status["used_bytes"] <= memory
        if not kvc_env.has_sanitizer():
            most = max(most, resident_bytes(mount.pid, "VmRSS"))
    for name, turn, mapping in kept:
        assert_bytes(mapping.read(), payload(name, SIZE, turn), f"{name} of round {turn}, mapped")
        mapping.close()
    assert most <= memory + ALLOWANCE
    closed(mount)
    mount.drain()  # what is not on the volume yet stays
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    wait_until(lambda: mount.status()["memory"]["file_passed_bytes"] == 0, SOON, "the memory of what was mapped comes back")


@pytest.mark.deadline(600)
def test_nothing_leaks(new_mount):
    mount = make(new_mount, memory_file_min="256K")
    size = 600 * KIB
    put_all(mount, ["teach"], size)

    def pass_through_and_forget(count):
        for index in range(count):
            path = os.path.join(mount.path, f"brief{index % 50}")
            put(path, payload(f"brief{index}", size))
            assert_bytes(read_buffered(path, size), payload(f"brief{index}", size), path)
        closed(mount)
        for index in range(50):
            os.unlink(os.path.join(mount.path, f"brief{index}"))
        mount.drain()
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        wait_until(lambda: mount.status()["memory"]["file_passed_bytes"] == 0, SOON, "the memory of what was read comes back")

    pass_through_and_forget(100)
    spare_limit = mount.status()["memory"]["limit_bytes"] // 4 // (2 * MIB)
    before = descriptors(mount)
    pass_through_and_forget(20_000 if kvc_env.LONG else 1_000)
    assert descriptors(mount) <= before + spare_limit
    memory = mount.status()["memory"]
    assert memory["file_bytes"] == memory["file_spare_bytes"] <= memory["limit_bytes"] // 4
