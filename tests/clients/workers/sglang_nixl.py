"""SGLang's HiCacheNixl on NIXL's POSIX plugin: files opened under their final names, many at once, libaio."""

import hashlib
import mmap
import os

import numpy as np
import torch

from workers import sglang_packages

sglang_packages.enter()

from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl  # noqa: E402

from payload import check, payload  # noqa: E402
from workers.common import Meeting, direct_opens, serve as serve_names  # noqa: E402

MODEL = "Qwen/Qwen3-8B"


class HostPool:
    """A host KV pool of one token a page: K and V halves of a page lie in two regions, as in the engine's page-first
    layout; the other layout hands out whole pages."""

    page_size = 1
    pin_memory = False

    def __init__(self, pages: int, page_bytes: int, zero_copy: bool):
        self.layout = "page_first" if zero_copy else "layer_first"
        self._half = page_bytes // 2
        self._map = mmap.mmap(-1, pages * page_bytes)
        flat = torch.from_numpy(np.frombuffer(self._map, dtype=np.uint8))
        self.kv_buffer = flat.view(2, pages, self._half)

    def is_stride_page_aligned(self, alignment: int) -> bool:
        return self.kv_buffer.data_ptr() % alignment == 0 and self._half % alignment == 0

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        addresses = [self.kv_buffer[half, page].data_ptr() for page in indices.tolist() for half in (0, 1)]
        return addresses, [self._half] * len(addresses)

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * self._half, dtype=torch.uint8)

    def get_data_page(self, index, flat: bool = True) -> torch.Tensor:
        assert flat
        return self.kv_buffer[:, int(index)].flatten()

    def set_from_flat_data_page(self, index, data_page: torch.Tensor) -> None:
        self.kv_buffer[:, int(index)] = data_page.view(2, self._half)


class Engine:
    def __init__(self, path: str, pages: int, page_bytes: int, direct: bool, zero_copy: bool):
        # HiCacheNixl wraps the options for a plugin in {"plugin": {NAME: {...}}}; the watermark cleaner would remove
        # by how full the disk of the machine happens to be.
        config = sglang_packages.storage_config(
            MODEL, plugin={"posix": {"active": True}}, use_direct_io=direct, l3_cleaner_enabled=False
        )
        self.store = HiCacheNixl(config, file_path=path)
        self.pool = HostPool(pages, page_bytes, zero_copy)
        self.store.register_mem_pool_host(self.pool)
        assert self.store.is_zero_copy == zero_copy, "HiCacheNixl fell back to copying"
        assert self.store.backend_selector.backend_name == "POSIX"
        self.indices = torch.arange(pages)

    def fill(self, keys: list[str], page_bytes: int, version: int) -> None:
        for index, key in enumerate(keys):
            self.pool.set_from_flat_data_page(index, torch.from_numpy(payload(key, page_bytes, version)))


def page_keys(pages: int, generation: int = 0) -> list[str]:
    return [hashlib.sha256(f"{generation}/{number}".encode()).hexdigest() for number in range(pages)]


def put(path: str, pages: int, page_bytes: int, direct: bool, zero_copy: bool, version: int = 0, rounds: int = 1,
        meet=None):
    meeting = Meeting(meet)
    engine = Engine(path, pages, page_bytes, direct, zero_copy)
    for number in range(rounds):
        keys = page_keys(pages, number)
        engine.fill(keys, page_bytes, version)
        meeting.at(f"round-{number}")
        assert all(engine.store.batch_set_v1(keys, engine.indices)), "batch_set_v1 failed"
    engine.store.close()
    return direct_opens()


def get(path: str, pages: int, page_bytes: int, direct: bool, zero_copy: bool, version: int = 0, rounds: int = 1):
    engine = Engine(path, pages, page_bytes, direct, zero_copy)
    for number in range(rounds):
        keys = page_keys(pages, number)
        engine.pool.kv_buffer.fill_(0xEE)
        assert engine.store.batch_exists(keys + page_keys(1, 999)) == pages
        assert all(engine.store.batch_get_v1(keys, engine.indices)), "batch_get_v1 failed"
        for index, key in enumerate(keys):
            check(key, engine.pool.get_data_page(index).numpy(), page_bytes, version)
    engine.store.close()
    return direct_opens()


def clear(path: str, pages: int, page_bytes: int, direct: bool, zero_copy: bool):
    """Removes all files; what is left, and how many keys are still said to exist."""
    engine = Engine(path, pages, page_bytes, direct, zero_copy)
    engine.store.clear()
    still = engine.store.batch_exists(page_keys(pages))
    engine.store.close()
    return {"exist": still, "files": [name for _, _, names in os.walk(path) for name in names]}


def serve(path: str, pages: int, page_bytes: int, direct: bool, zero_copy: bool, passes: int):
    batch = 32
    engine = Engine(path, batch, page_bytes, direct, zero_copy)

    def load(keys: list[str]) -> list[str]:
        engine.pool.kv_buffer.fill_(0xEE)
        came = engine.store.batch_get_v1(keys, engine.indices[: len(keys)])
        for index, (key, there) in enumerate(zip(keys, came, strict=True)):
            if there:
                check(key, engine.pool.get_data_page(index).numpy(), page_bytes)
        return [key for key, there in zip(keys, came, strict=True) if there]

    def save(keys: list[str]) -> None:
        engine.fill(keys, page_bytes, 0)
        assert all(engine.store.batch_set_v1(keys, engine.indices[: len(keys)])), "batch_set_v1 failed"

    counts = serve_names(page_keys(pages), batch, passes=passes, load=load, store=save,
                         look_up=lambda keys: keys[: engine.store.batch_exists(keys)])
    engine.store.close()
    return counts
