"""What single clients do beyond put, probe and get: one section per client."""

import concurrent.futures
import os
import random
import stat
import time

import pytest

import kvc_native
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_native import Mapping, Native, aligned, require_whole
from kvc_process import Gate, in_process, in_processes
from sequences import (
    HEADER,
    AibrixShfs,
    LlmdFs,
    LmcacheFs,
    LmcacheGdsCufileDirect,
    LmcacheGdsPosix,
    LmcacheLocalDisk,
    LmcacheLocalDiskDirect,
    LmcacheMp,
    NixlFileDirect,
    SafetensorsSave,
    SglangFile,
    SglangFileLarge,
    SglangNixl,
    SglangNixlDirect,
    TorchSave,
    UcmPosixStore,
    VllmFsTier,
    digest,
    read_once,
)

NIXL = {False: SglangNixl, True: SglangNixlDirect}


def store_in_threads(client, path, keys, size, workers):
    client.prepare(path)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda key: client.put(path, key, payload(key, size)), keys))


# --- LMCache GDS ---


@pytest.mark.parametrize("client", [LmcacheGdsPosix(), LmcacheGdsCufileDirect()], ids=lambda client: client.name)
def test_gds_start_scan_finds_every_sidecar(client, root):
    """At start the backend lists the two levels of directories and reads 4096 bytes of every sidecar, which equal the head of the data file."""
    keys = [f"scan/{index}" for index in range(24)]
    in_process(store_in_threads, client, root.path, keys, 512 * KIB, client.writers)

    def scan():
        found = {}
        for first in os.scandir(root.path):
            for second in os.scandir(first.path):
                for entry in os.scandir(second.path):
                    if entry.name.endswith(".metadata"):
                        found[entry.path[: -len(".metadata")]] = read_once(entry.path, HEADER, os.O_NOATIME)
        assert set(found) == {client.path(root.path, key) for key in keys}
        for key in keys:
            assert_bytes(found[client.path(root.path, key)], payload(key, 512 * KIB)[:HEADER], key)
            assert os.stat(client.path(root.path, key) + ".metadata").st_size == HEADER

    root.check_everywhere(scan)


def test_gds_a_sidecar_never_outlives_its_body(root):
    """LMCache asks only for the sidecar; when the body is removed, by hand as here, a later sidecar without body would be a phantom hit. By hand
    both names are separate files, so removing the body leaves a sidecar that still reads its own 4096 bytes."""
    client = LmcacheGdsPosix()
    in_process(client.put, root.path, "k", payload("k", MIB))
    path = client.path(root.path, "k")
    os.unlink(path)

    def check():
        assert not os.path.exists(path)
        if os.path.exists(path + ".metadata"):
            assert_bytes(read_once(path + ".metadata", HEADER), payload("k", MIB)[:HEADER], "sidecar")

    root.check_everywhere(check)


def test_gds_sidecar_rewritten_with_other_bytes(root):
    """The sidecar is a file of its own to its users: changing it does not change the body, nor the other way round."""
    client = LmcacheGdsPosix()
    path = client.path(root.path, "k")
    in_process(client.put, root.path, "k", payload("k", MIB))

    def change():
        client.put_sidecar(path, payload("other", HEADER))

    in_process(change)

    def check():
        assert_bytes(read_once(path + ".metadata", HEADER), payload("other", HEADER), "sidecar")
        assert_bytes(client.get(root.path, "k", MIB), payload("k", MIB), "body")

    root.check_everywhere(check)
    in_process(client.put, root.path, "k", payload("k2", MIB))

    def check_new():
        assert_bytes(read_once(path + ".metadata", HEADER), payload("k2", MIB)[:HEADER], "sidecar")
        assert_bytes(client.get(root.path, "k", MIB), payload("k2", MIB), "body")

    root.check_everywhere(check_new)


def test_gds_chunk_of_32_mib(root):
    client = LmcacheGdsPosix()
    in_process(client.put, root.path, "big", payload("big", 32 * MIB))
    root.check_everywhere(lambda: assert_bytes(client.get(root.path, "big", 32 * MIB), payload("big", 32 * MIB), "big"))


# --- LMCache fs:// ---


def test_fs_head_read_then_tail(root):
    client = LmcacheFs()
    size = MIB + 28
    in_process(client.put, root.path, "k", payload("k", size))

    def check():
        path = client.path(root.path, "k")
        assert_bytes(read_once(path, 28), payload("k", size)[:28], "head")
        assert_bytes(read_once(path, size - 28, 0, 28), payload("k", size)[28:], "tail at the odd offset 28")
        assert read_once(path, 100, 0, size) == b"", "pread at the end"
        assert read_once(path, 100, 0, size + 4096) == b"", "pread past the end"
        assert_bytes(read_once(path, 100, 0, size - 10), payload("k", size)[-10:], "pread across the end")

    root.check_everywhere(check)


# --- LMCache local_disk ---


@pytest.mark.parametrize("client", [LmcacheLocalDisk(), LmcacheLocalDiskDirect()], ids=lambda client: client.name)
def test_local_disk_rewrites_in_place(client, root):
    """A new process rewrites every chunk under its final name; nobody checks a length, so it must be right."""
    keys = [f"rewrite/{index}" for index in range(6)]

    def rewrite(version):
        for key in keys:
            client.put(root.path, key, payload(key, MIB, version))

    def check(version):
        for key in keys:
            assert_bytes(client.get(root.path, key, 2 * MIB), payload(key, MIB, version), f"{key} version {version}")

    for version in range(3):
        in_process(rewrite, version)
        root.check_everywhere(check, version)


def test_local_disk_lru_of_two_workers(root):
    """Each worker unlinks its own oldest files while it writes new ones."""
    client = LmcacheLocalDisk()

    def worker(rank):
        live = []
        for index in range(40):
            key = f"{rank}/{index}"
            client.put(root.path, key, payload(key, 256 * KIB))
            live.append(key)
            if len(live) > 8:
                os.unlink(client.path(root.path, live.pop(0)))
        return live

    kept = [key for live in in_processes([(worker, 0), (worker, 1)]) for key in live]

    def check():
        assert sorted(os.listdir(root.path)) == sorted(os.path.basename(client.path(root.path, key)) for key in kept)
        for key in kept:
            assert_bytes(client.get(root.path, key, 256 * KIB), payload(key, 256 * KIB), key)

    root.check_everywhere(check)


def test_in_place_overwrite_of_a_part(root):
    """O_RDWR without truncation, some bytes in the middle and some past the end: the rest stays."""
    path = root.join("chunk")
    body = bytearray(payload("part", 3 * MIB + 5))

    def create():
        with open(path, "wb") as file:
            file.write(body)

    in_process(create)
    root.remount()
    body[100:200] = b"a" * 100
    body[2 * MIB - 7 : 2 * MIB + 70_000] = b"b" * 70_007
    body[3 * MIB :] = b"c" * 4096

    def change():
        fd = os.open(path, os.O_RDWR)
        os.pwrite(fd, b"a" * 100, 100)
        os.pwrite(fd, b"b" * 70_007, 2 * MIB - 7)
        os.pwrite(fd, b"c" * 4096, 3 * MIB)
        assert_bytes(os.pread(fd, 4 * MIB, 0), body, "as the writer sees it")
        os.close(fd)

    in_process(change)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 4 * MIB), body, "overwritten"))


# --- LMCache MP ---


def test_mp_batch_is_probed_whole_and_loaded_in_runs(root):
    client = LmcacheMp()
    keys = [f"batch/{index}" for index in range(30)]
    in_process(store_in_threads, client, root.path, keys[:26], 512 * KIB, 4)

    def check():
        assert client.probe(root.path, keys) == [True] * 26 + [False] * 4
        for key, body in zip(keys, client.load_batch(root.path, keys[:26], 512 * KIB)):
            assert_bytes(body, payload(key, 512 * KIB), key)
        # The read loop asks for 8 bytes of head first in fs_native; more than there is comes back short, which is a miss to it.
        assert client.get(root.path, keys[0], 8) == payload(keys[0], 512 * KIB)[:8]
        assert len(client.get(root.path, keys[0], 600 * KIB)) == 512 * KIB

    root.check_everywhere(check)


# --- NIXL ---


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "odirect"])
def test_nixl_pool_files_overwritten_in_place(direct, root):
    """Fixed pool files are opened O_RDWR, kept open and overwritten, one libaio request a chunk, all of a batch in one io_submit."""
    count, size = 32, 256 * KIB
    paths = [root.join(f"obj_{index}.bin") for index in range(count)]

    def run():
        fds = [os.open(path, os.O_RDWR | os.O_CREAT | direct, 0o644) for path in paths]
        for version in range(3):
            requests = [(fd, aligned(payload(f"pool/{index}", size, version)), 0) for index, fd in enumerate(fds)]
            require_whole(Native.get().aio(requests, write=True), requests)
            readers = [(fd, aligned(size), 0) for fd in fds]
            require_whole(Native.get().aio(readers, write=False), readers)
            for index, (_, view, _) in enumerate(readers):
                assert_bytes(view, payload(f"pool/{index}", size, version), f"pool file {index}")
        for fd in fds:
            os.close(fd)

    in_process(run)
    root.check_everywhere(
        lambda: [
            assert_bytes(read_once(path, size, direct), payload(f"pool/{index}", size, 2), path)
            for index, path in enumerate(paths)
        ]
    )


def test_nixl_descriptors_of_4_kib_in_one_submit(root):
    """Unmerged descriptors: 256 writes of 4 KiB in any order into one file, all at once."""
    path, size = root.join("pool"), MIB
    body = payload("4k", size)

    def run():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        offsets = list(range(0, size, 4096))
        random.Random(4).shuffle(offsets)
        requests = [(fd, aligned(body[offset : offset + 4096]), offset) for offset in offsets]
        require_whole(Native.get().aio(requests, write=True), requests)
        os.close(fd)

    in_process(run)
    root.check_everywhere(lambda: assert_bytes(read_once(path, size), body, "pool"))


def test_nixl_batch_of_64_files_then_unlink(root):
    client = NixlFileDirect()
    keys = [f"nixl/{index}" for index in range(64)]
    in_process(client.put_batch, root.path, [(key, payload(key, 128 * KIB)) for key in keys])

    def check():
        for key, body in zip(keys, client.get_batch(root.path, keys, 128 * KIB)):
            assert_bytes(body, payload(key, 128 * KIB), key)
        assert stat.S_IMODE(os.stat(client.path(root.path, keys[0])).st_mode) == 0o777 & ~mask

    mask = os.umask(0o022)
    os.umask(mask)
    root.check_everywhere(check)
    for key in keys:
        os.unlink(client.path(root.path, key))
    assert client.probe(root.path, keys) == [False] * 64
    assert os.listdir(root.path) == []


# --- vLLM ---


def test_vllm_random_store_order_and_prefix_order_load(root):
    """One job stores a request's blocks in no order; the scheduler probes all in prefix order, also after the first absent one; then one file
    after another is read. The same probe runs before the store, of names that are all absent."""
    client = VllmFsTier()
    keys = [f"block/{index}" for index in range(60)]

    def store(first, last):
        client.prepare(root.path)
        assert client.probe(root.path, keys[first:last]) == [False] * (last - first)
        order = keys[first:last]
        random.Random(7).shuffle(order)
        for key in order:
            client.put(root.path, key, payload(key, 128 * KIB))

    in_process(store, 0, 40)
    assert in_process(client.probe, root.path, keys) == [True] * 40 + [False] * 20
    in_process(store, 40, 60)

    def check():
        assert client.probe(root.path, keys) == [True] * 60
        for key in keys:
            assert_bytes(client.get(root.path, key, 128 * KIB), payload(key, 128 * KIB), key)
        assert client.probe(root.path, keys) == [True] * 60, "a load made the client unlink a chunk"

    root.check_everywhere(check)


def test_vllm_leaf_directories(root):
    """1024 leaf directories of the 4096 x 256, each made by makedirs; all stay."""
    client = VllmFsTier()
    keys = [f"leaf/{index}" for index in range(1024)]

    def make():
        for key in keys:
            os.makedirs(os.path.dirname(client.path(root.path, key)), exist_ok=True)

    in_process(make)

    def check():
        for key in keys:
            leaf = os.path.dirname(client.path(root.path, key))
            assert stat.S_ISDIR(os.stat(leaf).st_mode) and os.listdir(leaf) == []

    root.check_everywhere(check)


def test_vllm_exclusive_temp_is_refused_when_it_exists(root):
    path = root.join("x.tmp")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT
    os.close(os.open(path, flags, 0o644))
    with pytest.raises(FileExistsError):
        os.open(path, flags, 0o644)


# --- llm-d ---


def test_llmd_reads_the_tail_and_touches_atime_only(root):
    client = LlmdFs()
    in_process(client.put, root.path, "k", payload("k", MIB))
    path = client.path(root.path, "k")
    mtime = os.stat(path).st_mtime_ns
    kvc_native.utimensat(path, (1_000_000_000, 123_456_789), (0, kvc_native.UTIME_OMIT))
    assert os.stat(path).st_atime_ns == 1_000_000_000_123_456_789
    before = time.time_ns()

    def probe():
        assert client.probe(root.path, ["k", "absent"]) == [True, False]

    in_process(probe)
    touched = os.stat(path)
    assert touched.st_mtime_ns == mtime
    assert (
        touched.st_atime_ns >= before - 20_000_000
    ), "atime=now was not taken"  # the kernel's coarse clock lags by a tick

    def check():
        assert os.stat(path).st_mtime_ns == mtime
        assert_bytes(client.get_tail(root.path, "k", 300 * KIB + 1), payload("k", MIB)[-(300 * KIB + 1) :], "tail")

    root.check_everywhere(check)


def test_llmd_evictor_sees_statvfs_fall_at_once(new_mount):
    """The external evictor unlinks the oldest by atime until statvfs shows enough space: every unlink must show."""
    mount = new_mount({"capacity": "1G"})  # so that other users of the disk do not matter
    if mount.plain:
        return  # ... as they do there
    client = LlmdFs()
    keys = [f"evict/{index}" for index in range(12)]
    in_process(store_in_threads, client, mount.path, keys, 4 * MIB, 2)
    for index, key in enumerate(keys):
        kvc_native.utimensat(client.path(mount.path, key), (1_600_000_000 + index, 0), (0, kvc_native.UTIME_OMIT))
    for key in sorted(keys, key=lambda key: os.stat(client.path(mount.path, key)).st_atime_ns):
        before = os.statvfs(mount.path)
        os.unlink(client.path(mount.path, key))
        after = os.statvfs(mount.path)
        # Other space of the volume (journal, index) may grow meanwhile, by far less than one chunk.
        assert (
            after.f_bavail - before.f_bavail
        ) * after.f_frsize >= 3 * MIB, f"statvfs did not fall with the unlink of {key}"


# --- SGLang HiCache file ---


def test_sglang_pages_in_batches_of_128(root):
    """52 KB pages in one flat directory: exists per page in order, strictly serial loads in batches of 128, scandir of the whole directory."""
    client = SglangFile()
    keys = [f"page/{index}" for index in range(640)]
    size = client.chunk_bytes
    in_process(store_in_threads, client, root.path, keys, size, 2)

    def check():
        for start in range(0, len(keys), 128):
            batch = keys[start : start + 128]
            assert client.probe(root.path, batch) == [True] * len(batch)
            for key in batch:
                assert_bytes(client.get(root.path, key, size), payload(key, size), key)
        names = [entry.name for entry in os.scandir(root.path)]
        assert len(names) == len(set(names)) == len(keys)
        assert set(names) == {os.path.basename(client.path(root.path, key)) for key in keys}
        shuffled = keys + [f"absent/{index}" for index in range(60)]
        random.Random(2).shuffle(shuffled)
        assert client.probe(root.path, shuffled) == [
            key.startswith("page/") for key in shuffled
        ], "hybrid models probe in no order"

    root.check_everywhere(check)


def test_sglang_keep_size_does_not_change_the_size(root):
    client = SglangFileLarge()
    path = root.join(".hidden.tmp")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    kvc_native.fallocate(fd, kvc_native.FALLOC_FL_KEEP_SIZE, 0, client.chunk_bytes)
    assert os.fstat(fd).st_size == 0
    os.write(fd, b"x" * 10)
    assert os.fstat(fd).st_size == 10
    os.close(fd)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 100), b"x" * 10, "after KEEP_SIZE"))


def test_sglang_older_temp_name_with_pid_and_tid(root):
    """<final>.tmp.<pid>.<tid>.<uuid>"""
    client = SglangFile()
    path = client.path(root.path, "old style")
    body = payload("old style", client.chunk_bytes)

    def put():
        temp = f"{path}.tmp.{os.getpid()}.{os.getpid()}.0123456789abcdef"
        with open(temp, "wb") as file:
            file.write(body)
        os.replace(temp, path)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(client.get(root.path, "old style", len(body)), body, "chunk"))


# --- SGLang HiCache nixl ---


@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "odirect"])
def test_sglang_nixl_64_requests_of_64_files_and_256_open(direct, root):
    client = NIXL[direct]()
    keys = [f"halves/{index}" for index in range(256)]
    size = 64 * KIB

    def store():
        client.prepare(root.path)
        for start in range(0, len(keys), 64):
            client.put_batch(root.path, [(key, payload(key, size)) for key in keys[start : start + 64]])

    def check(version):
        assert client.probe(root.path, keys) == [True] * len(keys)
        for key, body in zip(keys, client.get_batch(root.path, keys, size)):  # all 256 open at once
            assert_bytes(body, payload(key, size, version), key)

    in_process(store)
    root.check_everywhere(check, 0)
    in_process(lambda: client.put_batch(root.path, [(key, payload(key, size, 1)) for key in keys]))
    root.check_everywhere(check, 1)


def test_sglang_nixl_cleaner_removes_the_oldest_by_mtime(root):
    client = SglangNixl()
    keys = [f"clean/{index}" for index in range(40)]

    def run():
        client.prepare(root.path)
        client.put_batch(root.path, [(key, payload(key, 64 * KIB)) for key in keys])
        for index, key in enumerate(keys):
            os.utime(client.path(root.path, key), (1_700_000_000, 1_700_000_000 - index))
        os.statvfs(root.path)
        files = []
        for bucket in os.scandir(root.path):
            for entry in os.scandir(bucket.path):
                files.append((entry.stat().st_mtime, entry.path))
        for _, path in sorted(files)[:12]:
            os.unlink(path)

    in_process(run)

    def check():
        assert client.probe(root.path, keys) == [True] * 28 + [False] * 12

    root.check_everywhere(check)


# --- UCM ---


def test_ucm_late_shards_share_the_temp_file(root):
    """The second descriptor opens after the first has written and not closed: without O_TRUNC it is the same file, and no byte may be lost.
    The one that ends first of all renames while the others still write."""
    path = root.join("block")
    body = payload("ucm", MIB)
    quarter = MIB // 4

    def put():
        flags = os.O_CREAT | os.O_WRONLY
        first = os.open(f"{path}.tmp", flags, 0o644)
        os.pwrite(first, body[:quarter], 0)
        second = os.open(f"{path}.tmp", flags, 0o644)
        os.pwrite(second, body[quarter : 2 * quarter], quarter)
        third = os.open(f"{path}.tmp", flags, 0o644)
        os.pwrite(third, body[3 * quarter :], 3 * quarter)
        os.close(third)
        os.rename(f"{path}.tmp", path)
        os.pwrite(second, body[2 * quarter : 3 * quarter], 2 * quarter)
        os.close(second)
        os.close(first)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(read_once(path, 2 * MIB), body, "block"))


def test_ucm_shards_written_by_threads_opening_when_they_come(root):
    """As the client does it: no shard waits for the others before it opens."""
    client = UcmPosixStore()

    def put(key, data):
        path = root.join(digest(key))
        shard = len(data) // 8
        ended = []

        def write_shard(index):
            fd = os.open(f"{path}.tmp", os.O_CREAT | os.O_WRONLY, 0o644)
            os.pwrite(fd, data[index * shard : (index + 1) * shard], index * shard)
            ended.append(index)
            if len(ended) == 8:
                os.rename(f"{path}.tmp", path)
            os.close(fd)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(write_shard, range(8)))

    keys = [f"late/{index}" for index in range(12)]
    in_process(lambda: [put(key, payload(key, client.chunk_bytes)) for key in keys])
    root.check_everywhere(
        lambda: [
            assert_bytes(read_once(root.join(digest(key)), 2 * MIB), payload(key, client.chunk_bytes), key)
            for key in keys
        ]
    )


@pytest.mark.deadline(900)
def test_ucm_makes_4096_directories_and_collects_by_mtime(root):
    client = UcmPosixStore()

    def run():
        for first in range(4096):
            os.mkdir(root.join(f"d{first:03x}"))
        client.prepare(root.path)
        client.put(root.path, "hit", payload("hit", MIB))
        client.put(root.path, "cold", payload("cold", MIB))
        os.utime(client.path(root.path, "cold"), (1_500_000_000, 1_500_000_000))
        os.utime(client.path(root.path, "hit"))  # a hit

    in_process(run)
    assert len([name for name in os.listdir(root.path) if name.startswith("d")]) == 4096
    oldest = min((client.path(root.path, key) for key in ("hit", "cold")), key=lambda path: os.stat(path).st_mtime_ns)
    os.unlink(oldest)

    def check():
        assert client.probe(root.path, ["hit", "cold"]) == [True, False]
        assert os.stat(root.path).st_nlink >= 1
        assert len([name for name in os.listdir(root.path) if name.startswith("d")]) == 4096

    root.check_everywhere(check)


# --- AIBrix ---


def test_aibrix_deletes_explicitly(root):
    client = AibrixShfs()
    in_process(client.put, root.path, "k", payload("k", MIB))
    os.unlink(client.path(root.path, "k"))
    assert client.probe(root.path, ["k"]) == [False]
    root.remount()
    assert client.probe(root.path, ["k"]) == [False]


# --- Tair ---


def test_tair_keys_synced_one_by_one_are_readable_by_others(root):
    path, step = root.join("kv"), 256 * KIB
    body = payload("tair", 8 * step)
    with Gate(2) as synced, Gate(2) as checked:

        def writer():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
            fd = os.open(path, os.O_RDWR)
            kvc_native.fallocate(fd, 0, 0, 8 * step)
            mapping = Mapping(fd, 8 * step, shared=True, writable=True)
            mapping.write(0, body[:step])
            mapping.sync()
            synced.wait()
            checked.wait()
            mapping.write(step, body[step:])
            mapping.sync()
            mapping.close()
            os.close(fd)

        def reader():
            synced.wait()
            try:
                assert_bytes(read_once(path, step), body[:step], "first key")
                assert_bytes(read_once(path, 7 * step, 0, step), bytes(7 * step), "keys not written yet")
            finally:
                checked.wait()

        in_processes([(writer,), (reader,)])
    root.check_everywhere(lambda: assert_bytes(read_once(path, 8 * step), body, "all keys"))


# --- torch.save and safetensors ---


def test_safetensors_mode_0600_survives(root):
    client = SafetensorsSave()
    in_process(client.put, root.path, "k", payload("k", MIB))

    def check():
        found = os.stat(client.path(root.path, "k"))
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_size == MIB
        assert client.probe(root.path, ["k", "absent"]) == [True, False]

    root.check_everywhere(check)


def test_safetensors_partial_reads_through_a_mapping(root):
    """get_slice: page faults here and there in a mapping of the whole file whose descriptor is closed."""
    client = SafetensorsSave()
    size = 3 * MIB + 17
    in_process(client.put, root.path, "k", payload("k", size))
    body = payload("k", size)

    def check():
        fd = os.open(client.path(root.path, "k"), os.O_RDONLY)
        mapping = Mapping(fd, size, shared=False, writable=True)
        os.close(fd)
        for offset in (size - 17, 2 * MIB + 5, 0, MIB - 1, 123_457):
            length = min(5000, size - offset)
            assert_bytes(mapping.read(offset, length), body[offset : offset + length], f"slice at {offset}")
        mapping.write(10, b"private")  # copy on write of the process, not of the file
        mapping.close()
        assert_bytes(read_once(client.path(root.path, "k"), size), body, "after a private change")

    root.check_everywhere(check)


def test_torch_save_over_an_older_file(root):
    """open(..., 'wb') of the final name truncates what was there; a shorter new body does not keep an old tail."""
    client = TorchSave()
    in_process(client.put, root.path, "k", payload("k", 2 * MIB))
    root.remount()
    in_process(client.put, root.path, "k", payload("k", MIB, 1))
    root.check_everywhere(lambda: assert_bytes(client.get(root.path, "k", 4 * MIB), payload("k", MIB, 1), "k"))


def test_torch_from_file_shared(root):
    """torch.from_file(shared=True) maps a file it opened O_RDWR; the change is the file's."""
    path = root.join("storage")
    in_process(lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)))

    def change():
        fd = os.open(path, os.O_RDWR)
        os.ftruncate(fd, MIB)
        mapping = Mapping(fd, MIB, shared=True, writable=True)
        mapping.write(4000, b"shared change")
        mapping.close()
        os.close(fd)

    in_process(change)
    expected = bytearray(MIB)
    expected[4000:4013] = b"shared change"
    root.check_everywhere(lambda: assert_bytes(read_once(path, 2 * MIB), expected, "storage"))
