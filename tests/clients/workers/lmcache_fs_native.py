"""LMCache's multi-process L2 adapter `fs_native`: the C++ connector of the wheel behind its Python adapter."""

import mmap
import os
import select

import numpy as np
import torch
from lmcache.lmcache_fs import LMCacheFSClient  # noqa: F401  a missing extension must fail the import
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.fs_native_l2_adapter import FSNativeL2AdapterConfig
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat

from payload import check, payload
from workers.common import Meeting, direct_opens, serve as serve_names

L1_BYTES = 256 << 20
TASK_TIMEOUT_MS = 60_000


class L1:
    """Host memory aligned to pages, as the multi-process server's L1 is."""

    def __init__(self):
        self._map = mmap.mmap(-1, L1_BYTES)
        self._buffer = torch.from_numpy(np.frombuffer(self._map, dtype=np.uint8))
        self._allocator = TensorMemoryAllocator(self._buffer, align_bytes=4096)

    def allocate(self, count: int, size_bytes: int) -> list:
        objects = self._allocator.batched_allocate(torch.Size([size_bytes]), torch.uint8, count, MemoryFormat.KV_2LTD)
        assert objects is not None, "L1 too small for the test"
        return objects


def adapter(path: str, options: dict):
    return create_l2_adapter(FSNativeL2AdapterConfig.from_dict({"base_path": path, **options}))


def object_keys(names: list[str]) -> list[ObjectKey]:
    return [ObjectKey(payload(f"hash of {name}", 32).tobytes(), "meta-llama/Llama-3.1-8B", 0x01000100)
            for name in names]


def wait_for(event_fd: int, what: str) -> None:
    poller = select.poll()
    poller.register(event_fd, select.POLLIN)
    assert poller.poll(TASK_TIMEOUT_MS), f"{what} did not end within {TASK_TIMEOUT_MS} ms"
    os.read(event_fd, 8)


def store_batch(l2, l1: L1, names: list[str], size_bytes: int, again: bool = False) -> None:
    """`again`: the adapter may have stored some before, and counts only the bytes of new ones."""
    objects = l1.allocate(len(names), size_bytes)
    for name, memory in zip(names, objects, strict=True):
        memory.tensor.copy_(torch.from_numpy(payload(name, size_bytes)))
    task = l2.submit_store_task(object_keys(names), objects)
    wait_for(l2.get_store_event_fd(), "store")
    result = l2.pop_completed_store_tasks()[task]
    assert result.is_successful(), f"store of {len(names)} objects failed"
    assert again or int(result) >= len(names) * size_bytes, f"store of {len(names)} objects answered {int(result)}"
    for memory in objects:
        memory.ref_count_down()


def look_up(l2, names: list[str]) -> list[bool]:
    task = l2.submit_lookup_and_lock_task(object_keys(names), {})
    wait_for(l2.get_lookup_and_lock_event_fd(), "lookup")
    found = l2.query_lookup_and_lock_result(task)
    return [found.test(i) for i in range(len(names))]


def load(l2, l1: L1, names: list[str], size_bytes: int) -> list[str]:
    """The names that could be loaded, compared."""
    objects = l1.allocate(len(names), size_bytes)
    for memory in objects:
        memory.tensor.fill_(0xEE)
    task = l2.submit_load_task(object_keys(names), objects)
    wait_for(l2.get_load_event_fd(), "load")
    loaded = l2.query_load_result(task)
    came = [name for i, name in enumerate(names) if loaded.test(i)]
    for name, memory in zip(names, objects, strict=True):
        if name in came:
            check(name, memory.tensor.numpy(), size_bytes)
        memory.ref_count_down()
    return came


def load_and_compare(l2, l1: L1, names: list[str], size_bytes: int) -> None:
    lost = set(names) - set(load(l2, l1, names, size_bytes))
    assert not lost, f"{sorted(lost)}: not loaded"


def put(path: str, options: dict, names: list[str], size_bytes: int, rounds: int = 1, meet=None):
    meeting = Meeting(meet)
    l2, l1 = adapter(path, options), L1()
    for number in range(rounds):
        meeting.at(f"round-{number}")
        store_batch(l2, l1, [f"{number}/{name}" for name in names], size_bytes)
    l2.close()
    return direct_opens()


def get(path: str, options: dict, names: list[str], size_bytes: int, rounds: int = 1):
    l2, l1 = adapter(path, options), L1()
    for number in range(rounds):
        keys = [f"{number}/{name}" for name in names]
        hits = look_up(l2, keys + ["never stored"])
        assert hits == [True] * len(keys) + [False], hits
        load_and_compare(l2, l1, keys, size_bytes)
    l2.close()
    return direct_opens()


def delete(path: str, options: dict, names: list[str]):
    l2 = adapter(path, options)
    keys = [f"0/{name}" for name in names]
    assert all(look_up(l2, keys))
    l2.delete(object_keys(keys))
    hits = look_up(l2, keys)
    l2.close()
    return hits


def serve(path: str, options: dict, names: list[str], size_bytes: int, passes: int):
    l2, l1 = adapter(path, options), L1()
    counts = serve_names(
        names, 4, passes=passes,
        look_up=lambda wanted: [name for name, there in zip(wanted, look_up(l2, wanted), strict=True) if there],
        load=lambda wanted: load(l2, l1, wanted, size_bytes),
        store=lambda missing: store_batch(l2, l1, missing, size_bytes, again=True),
    )
    l2.close()
    return counts
