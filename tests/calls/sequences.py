"""What each client does to its cache directory, call by call: flags, order, sizes and thread counts as the real client makes them.

A client class says how one chunk is prepared, stored, probed and loaded. put() raises OSError where the real client would notice an error and
only there: a result the client does not look at is not looked at here, so that a failure must surface in a call the client does check.
"""

import concurrent.futures
import hashlib
import os
import random
import threading
import urllib.parse
import uuid

import kvc_native
from kvc_env import KIB, MIB
from kvc_native import Mapping, Native, aligned, require_whole

HEADER = 4 * KIB


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def write_once(fd, data):
    """ONE write(2) of everything; a short count is a failure, as every client that looks treats it."""
    done = os.write(fd, data)
    if done != len(data):
        raise OSError(28, f"short write: {done} of {len(data)} bytes")


def pwrite_once(fd, data, offset):
    done = os.pwritev(fd, [data], offset)
    if done != len(data):
        raise OSError(28, f"short write: {done} of {len(data)} bytes")


def read_once(path, size, flags=0, offset=0):
    """open, ONE read, close. Returns what came: the caller judges the length."""
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        buffer = aligned(size)
        done = os.preadv(fd, [buffer], offset) if size else 0
        return bytes(buffer[:done])
    finally:
        os.close(fd)


class Client:
    """Defaults; every client overrides what it does differently."""

    name = ""
    chunk_bytes = 1 * MIB
    in_place = False  # writes under the final name, without temp and rename
    writers = 4  # how many puts it has in flight at once

    def prepare(self, root):
        os.makedirs(root, exist_ok=True)

    def path(self, root, key):
        raise NotImplementedError

    def put(self, root, key, data):
        raise NotImplementedError

    def probe(self, root, keys):
        return [os.path.exists(self.path(root, key)) for key in keys]

    def get(self, root, key, size):
        return read_once(self.path(root, key), size)


class LmcacheGds(Client):
    """LMCache gds_path: header by one open, the tensor by another, then the sidecar from an io_uring polling thread."""

    chunk_bytes = 3 * MIB
    writers = min(32, (os.cpu_count() or 1) + 4)
    direct = 0

    def path(self, root, key):
        name = urllib.parse.quote(f"Qwen/Qwen2.5-0.5B@1@0@{digest(key)[:16]}@bfloat16", safe="@")
        return os.path.join(root, digest(key)[:2], digest(key)[2:4], name + ".kvcache.safetensors")

    def put(self, root, key, data):
        path = self.path(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = f"{path}.tmp{uuid.uuid4().hex[:8]}"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_once(fd, data[:HEADER])
        finally:
            os.close(fd)
        self.write_tensor(temp, data)
        os.rename(temp, path)
        self.put_sidecar(path, data[:HEADER])

    def write_tensor(self, temp, data):
        raise NotImplementedError

    def put_sidecar(self, path, header):
        temp = f"{path}.metadata.tmp{uuid.uuid4().hex[:8]}"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            requests = [(fd, aligned(header), 0)]
            require_whole(Native.get().uring(requests, write=True, polled=True), requests)
        finally:
            os.close(fd)
        os.rename(temp, f"{path}.metadata")

    def probe(self, root, keys):
        return [self._probe_one(self.path(root, key)) for key in keys]

    def _probe_one(self, path):
        """On a miss of its RAM dict: exists(sidecar), then its 4096 bytes."""
        if not os.path.exists(f"{path}.metadata"):
            return False
        return len(read_once(f"{path}.metadata", HEADER, os.O_NOATIME)) == HEADER


class LmcacheGdsPosix(LmcacheGds):
    """The mmap put: the descriptor is closed (FLUSH) before any data is written; hole pages are read by the page faults."""

    name = "lmcache-gds-posix"

    def write_tensor(self, temp, data):
        fd = os.open(temp, os.O_RDWR)
        try:
            os.ftruncate(fd, len(data))
            mapping = Mapping(fd, len(data), shared=True, writable=True)
        finally:
            os.close(fd)
        mapping.write(HEADER, data[HEADER:])
        mapping.close()

    def get(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            mapping = Mapping(fd, os.fstat(fd).st_size, shared=False, writable=False, populate=True)
        finally:
            os.close(fd)
        try:
            return mapping.read()
        finally:
            mapping.close()


class LmcacheGdsCufile(LmcacheGds):
    """The cuFile put: one write of the tensor at 4096 whose result nobody looks at."""

    name = "lmcache-gds-cufile"

    def write_tensor(self, temp, data):
        fd = os.open(temp, os.O_RDWR | self.direct)
        try:
            os.pwritev(fd, [aligned(data[HEADER:])], HEADER)
        except OSError:
            pass  # unchecked, as in the client: the rename has to tell
        finally:
            os.close(fd)

    def get(self, root, key, size):
        path = self.path(root, key)
        return read_once(path, HEADER) + read_once(path, size - HEADER, self.direct, HEADER)


class LmcacheGdsCufileDirect(LmcacheGdsCufile):
    name = "lmcache-gds-cufile-odirect"
    direct = os.O_DIRECT


class LmcacheFs(Client):
    """LMCache fs://: 28 bytes of header, then the rest at offset 28; `.data` becomes `.tmp`: one temp name for all writers."""

    name = "lmcache-fs"
    suffix = ".data"
    header = 28

    def path(self, root, key):
        return os.path.join(root, f"Qwen-Qwen3-8B@1@0@{digest(key)[:16]}{self.suffix}")

    def temp(self, root, key):
        return self.path(root, key)[: -len(self.suffix)] + ".tmp"

    def put(self, root, key, data):
        temp = self.temp(root, key)
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_once(fd, data[: self.header])
            write_once(fd, data[self.header :])
        finally:
            os.close(fd)
        os.replace(temp, self.path(root, key))

    def get(self, root, key, size):
        with open(self.path(root, key), "rb", buffering=0) as file:
            head = file.read(self.header)
            tail = bytearray(size - len(head))
            view = memoryview(tail)
            while view:
                done = file.readinto(view)
                if not done:
                    break
                view = view[done:]
            return head + bytes(tail[: len(tail) - len(view)])


class LmcacheFsDirect(LmcacheFs):
    """Without the header, O_DIRECT: O_CREAT without O_TRUNC."""

    name = "lmcache-fs-odirect"

    def put(self, root, key, data):
        temp = self.temp(root, key)
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o666)
        try:
            pwrite_once(fd, aligned(data), 0)
        finally:
            os.close(fd)
        os.replace(temp, self.path(root, key))

    def get(self, root, key, size):
        return read_once(self.path(root, key), size, os.O_DIRECT)


class LmcacheLocalDisk(Client):
    name = "lmcache-local-disk"
    in_place = True
    flags = os.O_TRUNC

    def path(self, root, key):
        return os.path.join(root, f"Qwen-Qwen3-8B-1-0-{digest(key)[:16]}.pt")

    def put(self, root, key, data):
        fd = os.open(self.path(root, key), os.O_WRONLY | os.O_CREAT | self.flags, 0o666)
        try:
            pwrite_once(fd, aligned(data), 0)
        finally:
            os.close(fd)


class LmcacheLocalDiskDirect(LmcacheLocalDisk):
    name = "lmcache-local-disk-odirect"
    flags = os.O_DIRECT  # this mode has no O_TRUNC

    def get(self, root, key, size):
        return read_once(self.path(root, key), size, os.O_DIRECT)


class LmcacheMp(Client):
    """LMCache MP fs and fs_native: stat, one temp name for all writers, rename, unlink of the temp on error."""

    name = "lmcache-mp-fs"

    def path(self, root, key):
        return os.path.join(root, f"Qwen-Qwen3-8B@0x0@0@{digest(key)[:32]}.data")

    def put(self, root, key, data):
        path = self.path(root, key)
        temp = path[: -len(".data")] + ".tmp"
        if os.path.exists(path):
            return
        self.put_always(temp, path, data)

    def put_always(self, temp, path, data):
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_once(fd, data)
            finally:
                os.close(fd)
            os.rename(temp, path)
        except OSError:
            try:
                os.unlink(temp)
            except FileNotFoundError:
                pass
            raise

    def get(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            pieces, left = [], size
            while left:
                piece = os.read(fd, left)
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def load_batch(self, root, keys, size, workers=4):
        """fs_native: contiguous runs of the batch, one per worker."""
        length = -(-len(keys) // workers)
        runs = [keys[start : start + length] for start in range(0, len(keys), length)]
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return [
                body for run in pool.map(lambda run: [self.get(root, key, size) for key in run], runs) for body in run
            ]


class NixlFile(Client):
    """LMCache NIXL with one file per chunk: libaio, `<final>.tmp.<uuid>`, mode 0777, rename."""

    name = "lmcache-nixl"
    direct = 0

    def path(self, root, key):
        return os.path.join(root, f"{digest(key)[:32]}.bin")

    def put(self, root, key, data):
        self.put_batch(root, [(key, data)])

    def put_batch(self, root, chunks):
        """All chunks of a batch in one io_submit."""
        names, requests = [], []
        try:
            for key, data in chunks:
                temp = f"{self.path(root, key)}.tmp.{uuid.uuid4()}"
                requests.append(
                    (os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | self.direct, 0o777), aligned(data), 0)
                )
                names.append((temp, self.path(root, key)))
            require_whole(Native.get().aio(requests, write=True), requests)
        finally:
            for fd, _, _ in requests:
                os.close(fd)
        for temp, path in names:
            os.rename(temp, path)

    def get(self, root, key, size):
        return self.get_batch(root, [key], size)[0]

    def get_batch(self, root, keys, size):
        requests = [(os.open(self.path(root, key), os.O_RDONLY | self.direct), aligned(size), 0) for key in keys]
        try:
            results = Native.get().aio(requests, write=False)
        finally:
            for fd, _, _ in requests:
                os.close(fd)
        for result in results:
            if result < 0:
                raise OSError(-result, os.strerror(-result))
        return [bytes(view[:result]) for result, (_, view, _) in zip(results, requests)]

    def probe(self, root, keys):
        return [self._stat(self.path(root, key)) for key in keys]

    @staticmethod
    def _stat(path):
        try:
            os.stat(path)
            return True
        except FileNotFoundError:
            return False


class NixlFileDirect(NixlFile):
    name = "lmcache-nixl-odirect"
    direct = os.O_DIRECT


class VllmFsTier(Client):
    """vLLM's fs tier: one write, close, rename; access(F_OK) of all names; one read and no fstat."""

    name = "vllm-fs"
    direct = os.O_DIRECT
    _thread = threading.local()

    def model_dir(self, root):
        return os.path.join(root, "Qwen--Qwen3-8B_0123456789ab")

    def prepare(self, root):
        model = self.model_dir(root)
        os.makedirs(model, exist_ok=True)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as config:
            config.write('{"block_size": 16}')
        probe = os.path.join(model, f".o_direct_probe_{random.randrange(1 << 32)}.tmp")
        fd = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o600)
        try:
            pwrite_once(fd, aligned(bytes(4096)), 0)
        finally:
            os.close(fd)
            os.unlink(probe)

    def path(self, root, key):
        name = digest(key)
        return os.path.join(f"{self.model_dir(root)}_r0", name[:3], f"{name[3:5]}_g0", f"{name}.bin")

    def put(self, root, key, data):
        path = self.path(root, key)
        if os.access(path, os.F_OK):
            return
        try:
            os.stat(os.path.dirname(path))
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if not hasattr(self._thread, "random"):
            self._thread.random = random.randrange(1 << 48)  # constant per thread
        temp = f"{path}_{self._thread.random}.tmp"
        fd = os.open(temp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | self.direct, 0o644)
        try:
            pwrite_once(fd, aligned(data), 0)
        except OSError:
            os.close(fd)
            os.unlink(temp)
            raise
        os.close(fd)
        os.rename(temp, path)

    def probe(self, root, keys):
        """Of all the prompt's blocks, also after the first that is absent."""
        return [os.access(self.path(root, key), os.F_OK) for key in keys]

    def get(self, root, key, size):
        body = read_once(self.path(root, key), size, self.direct)
        if len(body) != size:
            os.unlink(self.path(root, key))  # what the client does, and why a short read destroys data
        return body


class VllmFsTierBuffered(VllmFsTier):
    name = "vllm-fs-buffered"
    direct = 0


class LlmdFs(Client):
    """llm-d: one writev through an ofstream and the rename BEFORE the close."""

    name = "llm-d"

    def path(self, root, key):
        name = digest(key)
        return os.path.join(root, name[:3], f"{name[3:5]}_g0", f"{name}.bin")

    def put(self, root, key, data):
        path = self.path(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = f"{path}_{random.randrange(1 << 32)}.tmp"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            done = os.writev(fd, [data[:8191], data[8191:]])
            if done != len(data):
                raise OSError(28, "short write")
            os.rename(temp, path)
        finally:
            os.close(fd)

    def probe(self, root, keys):
        found = []
        for key in keys:
            path = self.path(root, key)
            found.append(os.path.exists(path))
            if found[-1]:
                kvc_native.utimensat(path, (0, kvc_native.UTIME_NOW), (0, kvc_native.UTIME_OMIT))
        return found

    def get(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            end = os.lseek(fd, 0, os.SEEK_END)
            os.lseek(fd, 0, os.SEEK_SET)
            return os.read(fd, end)
        finally:
            os.close(fd)

    def get_tail(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            end = os.lseek(fd, 0, os.SEEK_END)
            os.lseek(fd, end - size, os.SEEK_SET)
            return os.read(fd, size)
        finally:
            os.close(fd)


class SglangFile(Client):
    """SGLang HiCache file: numpy.tofile to a hidden temp whose name has nothing to do with the final one."""

    name = "sglang-file"
    chunk_bytes = 52 * KIB

    def path(self, root, key):
        return os.path.join(root, f"{digest(key)}_Qwen-Qwen3-8B_0_1.bin")

    def put(self, root, key, data):
        temp = os.path.join(root, f".{uuid.uuid4().hex}.tmp")
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            other = os.dup(fd)  # numpy hands a duplicate to stdio
            try:
                if len(data) >= 16 * MIB:
                    kvc_native.fallocate(other, kvc_native.FALLOC_FL_KEEP_SIZE, 0, len(data))
                half = len(data) // 4096 * 4096 if len(data) % 4096 else len(data) - 4096
                write_once(other, data[:half])
                write_once(other, data[half:])
            finally:
                os.close(other)
        finally:
            os.close(fd)
        os.rename(temp, self.path(root, key))

    def get(self, root, key, size):
        with open(self.path(root, key), "rb", buffering=0) as file:
            buffer = bytearray(size)
            done = file.readinto(buffer)
            return bytes(buffer[:done])


class SglangFileLarge(SglangFile):
    """Pages of 16 MiB and more also call fallocate(KEEP_SIZE)."""

    name = "sglang-file-large"
    chunk_bytes = 16 * MIB + 512 * KIB


class SglangNixl(NixlFile):
    """SGLang HiCache nixl: straight to the final name, no truncation, no rename; libaio."""

    name = "sglang-nixl"
    in_place = True

    def prepare(self, root):
        for bucket in range(256):
            os.makedirs(os.path.join(root, f"{bucket:02x}"), exist_ok=True)

    def path(self, root, key):
        return os.path.join(root, digest(key)[:2], f"{digest(key)}_Qwen-Qwen3-8B_0_1_k")

    def put_batch(self, root, chunks):
        requests = []
        try:
            for key, data in chunks:
                requests.append(
                    (os.open(self.path(root, key), os.O_RDWR | os.O_CREAT | self.direct, 0o644), aligned(data), 0)
                )
            require_whole(Native.get().aio(requests, write=True), requests)
        finally:
            for fd, _, _ in requests:
                os.close(fd)


class SglangNixlDirect(SglangNixl):
    name = "sglang-nixl-odirect"
    direct = os.O_DIRECT


class UcmPosixStore(Client):
    """UCM PosixStore: one `.tmp` per block (never truncated), a pwrite per shard from a descriptor each; the last to end renames."""

    name = "ucm-posix"
    shards = 4
    direct = os.O_DIRECT

    def prepare(self, root):
        for first in range(64):  # 4096 in the client; the count is tried in its own test
            os.makedirs(os.path.join(root, f"{first:03x}"), exist_ok=True)

    def path(self, root, key):
        return os.path.join(root, f"{int(digest(key)[:3], 16) % 64:03x}", digest(key)[:32])

    def put(self, root, key, data):
        path = self.path(root, key)
        shard = len(data) // self.shards
        lock, ended, failures = threading.Lock(), [], []
        opened = threading.Barrier(self.shards)

        def write_shard(index):
            try:
                fd = os.open(f"{path}.tmp", os.O_CREAT | os.O_WRONLY | self.direct, 0o644)
            except OSError as error:
                failures.append(error)
                opened.wait()
                return
            opened.wait()
            try:
                end = len(data) if index == self.shards - 1 else (index + 1) * shard
                pwrite_once(fd, aligned(data[index * shard : end]), index * shard)
                with lock:
                    ended.append(index)
                    if len(ended) == self.shards and not failures:
                        os.rename(f"{path}.tmp", path)  # the other descriptors are still open
            except OSError as error:
                failures.append(error)
            finally:
                os.close(fd)

        threads = [threading.Thread(target=write_shard, args=(index,)) for index in range(self.shards)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def probe(self, root, keys):
        """access F, R and W; 16 threads strided."""
        found = [False] * len(keys)

        def stride(first):
            for index in range(first, len(keys), 16):
                path = self.path(root, keys[index])
                found[index] = all(os.access(path, mode) for mode in (os.F_OK, os.R_OK, os.W_OK))

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(stride, range(16)))
        return found

    def get(self, root, key, size):
        shard = size // self.shards
        body = bytearray(size)
        fd = os.open(self.path(root, key), os.O_RDONLY | self.direct)
        try:
            for index in range(self.shards):
                end = size if index == self.shards - 1 else (index + 1) * shard
                buffer = aligned(end - index * shard)
                done = os.preadv(fd, [buffer], index * shard)
                if done != len(buffer):
                    return bytes(body[: index * shard + done])
                body[index * shard : end] = buffer
        finally:
            os.close(fd)
        return bytes(body)


class AibrixShfs(Client):
    """AIBrix SHFS: every writer uses the SAME `.tmp`, O_TRUNC; after the replace a stat must show the size."""

    name = "aibrix-shfs"

    def path(self, root, key):
        return os.path.join(root, digest(key)[:2], digest(key)[2:4], digest(key))

    def put(self, root, key, data):
        path = self.path(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_once(fd, data)
        finally:
            os.close(fd)
        os.replace(f"{path}.tmp", path)
        assert os.stat(path).st_size == len(data), "stat after the replace shows another size"

    def probe(self, root, keys):
        return [os.path.exists(self.path(root, key)) and os.stat(self.path(root, key)).st_size > 0 for key in keys]


class TairKvcm(Client):
    """Tair KVCM, 8 keys a file: created empty, then O_RDWR, fallocate(0), shared mapping, msync(MS_SYNC) per key."""

    name = "tair-kvcm"
    chunk_bytes = 2 * MIB
    in_place = True
    keys_per_file = 8

    def path(self, root, key):
        return os.path.join(root, f"{digest(key)[:16]}.kv")

    def put(self, root, key, data):
        path = self.path(root, key)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        fd = os.open(path, os.O_RDWR)
        try:
            kvc_native.fallocate(fd, 0, 0, len(data))
            mapping = Mapping(fd, len(data), shared=True, writable=True)
        finally:
            os.close(fd)
        try:
            step = len(data) // self.keys_per_file
            for index in range(self.keys_per_file):
                mapping.write(index * step, data[index * step : (index + 1) * step])
                mapping.sync()
        finally:
            mapping.close()

    def get(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            mapping = Mapping(fd, os.fstat(fd).st_size, shared=False, writable=False)
        finally:
            os.close(fd)
        try:
            return mapping.read()
        finally:
            mapping.close()


class TorchSave(Client):
    """ExampleConnector by torch.save: the final name at once, a zip archive written in many pieces."""

    name = "torch-save"
    in_place = True

    def path(self, root, key):
        return os.path.join(root, digest(key)[:32], "layer.0.pt")

    def put(self, root, key, data):
        path = self.path(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            for start in range(0, len(data), 100_003):
                write_once(file.fileno(), data[start : start + 100_003])

    def probe(self, root, keys):
        return [os.path.exists(os.path.dirname(self.path(root, key))) for key in keys]


class SafetensorsSave(TorchSave):
    """safetensors since 0.8: `.tmp<6>` O_EXCL 0600, ftruncate, one write, rename BEFORE close."""

    name = "safetensors"
    in_place = False

    def path(self, root, key):
        return os.path.join(root, digest(key)[:32], "layer.0.safetensors")

    def put(self, root, key, data):
        path = self.path(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = os.path.join(os.path.dirname(path), f".tmp{uuid.uuid4().hex[:6]}")
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, len(data))
            write_once(fd, data)
            os.rename(temp, path)
        finally:
            os.close(fd)

    def get(self, root, key, size):
        fd = os.open(self.path(root, key), os.O_RDONLY)
        try:
            mapping = Mapping(fd, os.fstat(fd).st_size, shared=False, writable=False)
        finally:
            os.close(fd)
        try:
            return mapping.read()
        finally:
            mapping.close()


ALL_CLIENTS = [
    cls()
    for cls in (
        LmcacheGdsPosix,
        LmcacheGdsCufile,
        LmcacheGdsCufileDirect,
        LmcacheFs,
        LmcacheFsDirect,
        LmcacheLocalDisk,
        LmcacheLocalDiskDirect,
        LmcacheMp,
        NixlFile,
        NixlFileDirect,
        VllmFsTier,
        VllmFsTierBuffered,
        LlmdFs,
        SglangFile,
        SglangFileLarge,
        SglangNixl,
        SglangNixlDirect,
        UcmPosixStore,
        AibrixShfs,
        TairKvcm,
        TorchSave,
        SafetensorsSave,
    )
]

# The clients whose writers all use one temp name per chunk and truncate it.
SHARED_TEMP_CLIENTS = [
    client for client in ALL_CLIENTS if client.name in ("lmcache-fs", "lmcache-mp-fs", "aibrix-shfs")
]
