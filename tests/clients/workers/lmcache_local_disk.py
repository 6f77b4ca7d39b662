"""LMCache's LocalDiskBackend: one file per key, written in place under its final name."""

import asyncio
import os
import threading
import time

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

from payload import check, payload
from workers.common import Meeting, direct_opens, serve as serve_names

HOST_BYTES = 256 << 20
FORMAT = MemoryFormat.KV_2LTD
PUT_TIMEOUT_S = 30


class Engine:
    """A LocalDiskBackend with the host pool and event loop it needs."""

    def __init__(self, path: str, direct: bool, cap_bytes: int):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        config = LMCacheEngineConfig.from_dict({
            "local_disk": path, "max_local_disk_size": cap_bytes / 1024**3, "local_cpu": False, "chunk_size": 256,
            "cache_policy": "LRU", "extra_config": {"use_odirect": direct},
        })
        allocator = MixedMemoryAllocator(HOST_BYTES, align_bytes=4096)
        self.host = LocalCPUBackend(config, dst_device="cpu", memory_allocator=allocator)
        self.disk = LocalDiskBackend(config, self._loop, self.host, dst_device="cpu")

    def close(self) -> None:
        self.disk.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def cache_key(name: str) -> CacheEngineKey:
    chunk_hash = int.from_bytes(payload(f"hash of {name}", 8).tobytes(), "little")
    return CacheEngineKey("Qwen/Qwen3-8B", 1, 0, chunk_hash, torch.bfloat16)


def shape_of(size_bytes: int) -> torch.Size:
    return torch.Size([2, 1, 1, size_bytes // 4])  # bfloat16: two bytes an element


def store(engine: Engine, names: list[str], size_bytes: int, version: int) -> None:
    done, objects = set(), []
    for name in names:
        memory = engine.host.allocate(shape_of(size_bytes), torch.bfloat16, FORMAT)
        assert memory is not None, "host pool too small for the test"
        memory.tensor.view(torch.uint8).flatten().copy_(torch.from_numpy(payload(name, size_bytes, version)))
        objects.append(memory)
    keys = [cache_key(name) for name in names]
    engine.disk.batched_submit_put_task(keys, objects, on_complete_callback=done.add)
    deadline = time.monotonic() + PUT_TIMEOUT_S
    while len(done) < len(keys):
        assert time.monotonic() < deadline, f"{len(keys) - len(done)} of {len(keys)} puts did not complete"
        time.sleep(0.001)
    for memory in objects:
        memory.ref_count_down()


def load(engine: Engine, names: list[str], size_bytes: int, version: int) -> list[str]:
    """The names that could be loaded, compared."""
    came = []
    for name, memory in zip(names, engine.disk.batched_get_blocking([cache_key(n) for n in names]), strict=True):
        if memory is None:
            continue
        check(name, memory.tensor.view(torch.uint8).flatten().numpy(), size_bytes, version)
        memory.ref_count_down()
        came.append(name)
    return came


def load_and_compare(engine: Engine, names: list[str], size_bytes: int, version: int) -> None:
    lost = set(names) - set(load(engine, names, size_bytes, version))
    assert not lost, f"{sorted(lost)}: not loaded"


def put(path: str, direct: bool, names: list[str], size_bytes: int, version: int = 0, rounds: int = 1, meet=None):
    meeting = Meeting(meet)
    engine = Engine(path, direct, cap_bytes=1 << 30)
    for number in range(rounds):
        meeting.at(f"round-{number}")
        store(engine, [f"{number}/{name}" for name in names], size_bytes, version)
    engine.close()
    return direct_opens()


def get(path: str, direct: bool, names: list[str], size_bytes: int, version: int = 0, rounds: int = 1):
    """The backend keeps no list of its files across restarts: the keys are entered by its own insert_key."""
    engine = Engine(path, direct, cap_bytes=1 << 30)
    for number in range(rounds):
        keys = [f"{number}/{name}" for name in names]
        for name in keys:
            engine.disk.insert_key(cache_key(name), size_bytes, shape_of(size_bytes), torch.bfloat16, FORMAT)
            assert os.path.getsize(engine.disk._key_to_path(cache_key(name))) == size_bytes
        load_and_compare(engine, keys, size_bytes, version)
    engine.close()
    return direct_opens()


def fill_beyond_cap(path: str, names: list[str], size_bytes: int, cap_bytes: int):
    """Stores more than the cap allows, one after another, re-reading the first again and again: least recently used
    ones go. Returns the names that the backend still holds."""
    engine = Engine(path, False, cap_bytes)
    for name in names:
        store(engine, [name], size_bytes, 0)
        load_and_compare(engine, [names[0]], size_bytes, 0)
    kept = [name for name in names if engine.disk.contains(cache_key(name))]
    load_and_compare(engine, kept, size_bytes, 0)
    gone = [name for name in names if name not in kept]
    assert not any(os.path.exists(engine.disk._key_to_path(cache_key(name))) for name in gone)
    engine.close()
    return kept


def serve(path: str, direct: bool, names: list[str], size_bytes: int, passes: int):
    """The backend never looks at its files: it learns by the load that one is gone. It keeps no list over a restart, so a new one
    stores everything again, over what is there."""
    engine = Engine(path, direct, cap_bytes=1 << 30)
    counts = serve_names(
        names, 4, passes=passes,
        look_up=lambda wanted: [name for name in wanted if engine.disk.contains(cache_key(name))],
        # One key at a time it would raise KeyError on a file that is gone (0.5.6): always two or more.
        load=lambda wanted: load(engine, wanted + wanted[:1], size_bytes, 0),
        store=lambda missing: store(engine, missing, size_bytes, 0),
    )
    engine.close()
    return counts
