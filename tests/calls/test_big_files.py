"""The big-file clients: pools, slabs, buckets and allocators. They gain nothing from packing and must work."""

import errno
import os
import random
import threading

import pytest

import kvc_native
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_native import Native, aligned, require_whole
from kvc_process import in_process
from sequences import pwrite_once, read_once


def pread_all(fd, size, offset):
    buffer = aligned(size)
    done = os.preadv(fd, [buffer], offset)
    return bytes(buffer[:done])


def test_dynamo_kvbm(root):
    """mkostemp with O_DIRECT, fallocate mode 0 that must succeed, unlink while open, then block I/O until the process ends."""
    size, block = 64 * MIB, 2 * MIB

    def run():
        path = root.join("dynamo-kvbm-XYZ123")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        kvc_native.fallocate(fd, 0, 0, size)
        assert os.fstat(fd).st_size == size
        os.unlink(path)
        assert os.listdir(root.path) == []
        assert os.fstat(fd).st_nlink == 0
        order = list(range(size // block))
        random.Random(1).shuffle(order)
        for index in order[:12]:
            pwrite_once(fd, aligned(payload(f"block/{index}", block)), index * block)
        for index in order[:12]:
            assert_bytes(pread_all(fd, block, index * block), payload(f"block/{index}", block), f"block {index}")
        assert_bytes(pread_all(fd, block, order[12] * block), bytes(block), "an allocated block never written")
        os.close(fd)

    in_process(run)
    root.remount()
    assert os.listdir(root.path) == []


def test_tensorrt_llm_falls_back_on_eopnotsupp_alone(root):
    """O_TMPFILE must be refused with EOPNOTSUPP, the one errno after which the client makes a named file and unlinks it."""

    def run():
        try:
            fd = os.open(root.path, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, f"O_TMPFILE refused with {errno.errorcode[error.errno]}"
            path = root.join("fallback")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)
        body = payload("trt", 4 * MIB)
        pwrite_once(fd, body, 0)
        assert_bytes(pread_all(fd, 4 * MIB, 0), body, "unlinked file")
        os.close(fd)

    in_process(run)
    assert os.listdir(root.path) == []


@pytest.mark.needs_daemon
def test_o_tmpfile_is_eopnotsupp(root):
    with pytest.raises(OSError) as caught:
        os.open(root.path, os.O_TMPFILE | os.O_RDWR, 0o600)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_vllm_simple_cpu_offload(root):
    """O_EXCL|O_NOFOLLOW|O_DIRECT, ftruncate, pwritev and preadv of several buffers, unlinked at exit."""
    path, size = root.join("offload_r0.bin"), 48 * MIB

    def run():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT, 0o600)
        os.ftruncate(fd, size)
        pieces = [aligned(payload(f"piece/{index}", 64 * KIB)) for index in range(16)]
        for slot in (3, 0, 40):
            assert os.pwritev(fd, pieces, slot * MIB) == MIB
        for slot in (0, 3, 40):
            buffers = [aligned(64 * KIB) for _ in range(16)]
            assert os.preadv(fd, buffers, slot * MIB) == MIB
            for index, buffer in enumerate(buffers):
                assert_bytes(buffer, payload(f"piece/{index}", 64 * KIB), f"slot {slot} piece {index}")
        assert_bytes(pread_all(fd, MIB, 20 * MIB), bytes(MIB), "hole")
        os.close(fd)

    in_process(run)
    os.symlink("offload_r0.bin", root.join("link"))
    with pytest.raises(OSError) as caught:
        os.open(root.join("link"), os.O_RDWR | os.O_NOFOLLOW)
    assert caught.value.errno == errno.ELOOP

    def check():
        for slot in (0, 3, 40):
            for index in range(16):
                assert_bytes(
                    read_once(path, 64 * KIB, os.O_DIRECT, slot * MIB + index * 64 * KIB),
                    payload(f"piece/{index}", 64 * KIB),
                    "piece",
                )

    root.check_everywhere(check)
    os.unlink(path)
    assert not os.path.exists(path)


def test_flexkv_opens_each_file_twice(root):
    """One buffered and one O_DIRECT descriptor of the same file, io_uring on both: what one writes the other reads."""
    path, size, block = root.join("flexkv_0.bin"), 32 * MIB, MIB

    def run():
        buffered = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.ftruncate(buffered, size)
        even = [(direct, aligned(payload(f"block/{index}", block)), index * block) for index in range(0, 32, 2)]
        require_whole(Native.get().uring(even, write=True), even)
        odd = [(buffered, aligned(payload(f"block/{index}", block)), index * block) for index in range(1, 32, 2)]
        require_whole(Native.get().uring(odd, write=True), odd)
        for fd, what in ((buffered, "buffered"), (direct, "O_DIRECT")):
            readers = [(fd, aligned(block), index * block) for index in range(32)]
            require_whole(Native.get().uring(readers, write=False), readers)
            for index, (_, view, _) in enumerate(readers):
                assert_bytes(view, payload(f"block/{index}", block), f"block {index} by the {what} descriptor")
        os.close(direct)
        os.close(buffered)

    in_process(run)
    root.check_everywhere(
        lambda: [
            assert_bytes(read_once(path, block, 0, index * block), payload(f"block/{index}", block), f"block {index}")
            for index in range(32)
        ]
    )


def test_mooncake_buckets(root):
    """One pwritev of many values makes a bucket file; values are read by preadv at their offsets."""
    sizes = [random.Random(index).randrange(1, 2 * MIB) for index in range(40)]
    path = root.join("bucket_000001.data")

    def run():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        values = [payload(f"value/{index}", size) for index, size in enumerate(sizes)]
        assert os.pwritev(fd, values, 0) == sum(sizes)
        os.close(fd)
        with open(root.join("bucket_000001.meta"), "w", encoding="ascii") as meta:
            meta.write("\n".join(map(str, sizes)))

    in_process(run)

    def check():
        offset = 0
        with open(root.join("bucket_000001.meta"), encoding="ascii") as meta:
            assert [int(line) for line in meta] == sizes
        for index, size in enumerate(sizes):
            assert_bytes(read_once(path, size, 0, offset), payload(f"value/{index}", size), f"value {index}")
            offset += size

    root.check_everywhere(check)


def test_mooncake_offset_allocator(root):
    """fallocate(0) of all its space, O_TRUNC at every start, preadv of 24 bytes of header, the key and the value."""
    path, space = root.join("allocator.data"), 128 * MIB

    def life(version):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        assert os.fstat(fd).st_size == 0
        kvc_native.fallocate(fd, 0, 0, space)
        assert os.fstat(fd).st_size == space
        assert_bytes(pread_all(fd, 64 * KIB, 5 * MIB), bytes(64 * KIB), "what an earlier life wrote shows through")
        chooser, places, offset = random.Random(version), [], 0
        for index in range(30):
            size = chooser.randrange(1, MIB)
            key = f"key-{version}-{index}".encode()
            value = payload(f"{version}/{index}", size)
            assert os.pwritev(fd, [index.to_bytes(24, "little"), key, value], offset) == 24 + len(key) + size
            places.append((offset, key, size, index))
            offset += 24 + len(key) + size + chooser.randrange(4096)
        for offset, key, size, index in places:
            header, found_key, value = bytearray(24), bytearray(len(key)), bytearray(size)
            assert os.preadv(fd, [header, found_key, value], offset) == 24 + len(key) + size
            assert int.from_bytes(header, "little") == index and bytes(found_key) == key
            assert_bytes(value, payload(f"{version}/{index}", size), f"value {index}")
        os.close(fd)

    in_process(life, 0)
    in_process(life, 1)
    root.remount()
    in_process(life, 2)


def test_mooncake_file_per_key(root):
    body = payload("mk", 3 * MIB + 3)

    def put():
        fd = os.open(root.join("key%2F1"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        pwrite_once(fd, body, 0)
        os.close(fd)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(read_once(root.join("key%2F1"), 4 * MIB), body, "value"))


@pytest.mark.parametrize("kind", ["raw_block", "gds_slab"])
def test_lmcache_raw_block_and_slab(kind, root):
    """One file of fixed slots, sized by ftruncate or fallocate, written by several threads at slot offsets with O_DIRECT, kept open."""
    path, slots, slot = root.join(kind), 48, MIB

    def run():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        if kind == "raw_block":
            os.ftruncate(fd, slots * slot)
        else:
            kvc_native.fallocate(fd, 0, 0, slots * slot)
        failures = []

        def writer(first):
            try:
                for index in range(first, slots, 4):
                    pwrite_once(fd, aligned(payload(f"slot/{index}", slot)), index * slot)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=writer, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        pwrite_once(fd, aligned(payload("slot/again", slot)), 7 * slot)
        os.fsync(fd)
        os.close(fd)

    in_process(run)

    def check():
        for index in range(slots):
            name = "slot/again" if index == 7 else f"slot/{index}"
            assert_bytes(read_once(path, slot, os.O_DIRECT, index * slot), payload(name, slot), name)

    root.check_everywhere(check)


@pytest.mark.parametrize("engine", ["aio", "uring", "uring-sqpoll"])
@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "odirect"])
@pytest.mark.parametrize("size", [4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB], ids=["4k", "256k", "4m", "64m"])
def test_nixlbench_posix(engine, direct, size, root):
    count = max(1, min(32, 64 * MIB // size))

    def batch(requests, write):
        if engine == "aio":
            results = Native.get().aio(requests, write)
        else:
            results = Native.get().uring(requests, write, polled=engine.endswith("sqpoll"))
        require_whole(results, requests)

    def write():
        fd = os.open(root.join("nixlbench"), os.O_RDWR | os.O_CREAT | direct, 0o644)
        batch([(fd, aligned(payload(f"{size}/{index}", size)), index * size) for index in range(count)], True)
        os.close(fd)

    def check():
        fd = os.open(root.join("nixlbench"), os.O_RDONLY | direct)
        requests = [(fd, aligned(size), index * size) for index in range(count)]
        batch(requests, False)
        os.close(fd)
        for index, (_, view, _) in enumerate(requests):
            assert_bytes(view, payload(f"{size}/{index}", size), f"request {index}")

    in_process(write)
    in_process(check)
    if size in (4 * KIB, 4 * MIB):
        root.remount()
        in_process(check)
