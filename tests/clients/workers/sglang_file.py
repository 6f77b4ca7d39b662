"""SGLang's HiCacheFile: one flat directory, a file per page, a hidden temporary file and a rename."""

import hashlib
import os

import torch

from workers import sglang_packages

sglang_packages.enter()

from sglang.srt.mem_cache.hicache_storage import HiCacheFile  # noqa: E402

from payload import check, payload  # noqa: E402
from workers.common import Meeting, serve as serve_names  # noqa: E402

MODEL = "Qwen/Qwen3-8B"
BATCH = 128  # pages a call, as the engine's STORAGE_BATCH_SIZE


def backend(path: str, **extra) -> HiCacheFile:
    return HiCacheFile(sglang_packages.storage_config(MODEL, **extra), file_path=path)


def page_keys(first: int, count: int) -> list[str]:
    return [hashlib.sha256(f"page {number}".encode()).hexdigest() for number in range(first, first + count)]


def batches(keys: list[str]):
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))


def put(path: str, pages: int, size_bytes: int, first: int = 0, meet=None, **extra):
    """The engine's backup: a batch of pages at a time, in prefix order."""
    meeting = Meeting(meet)
    store = backend(path, **extra)
    for number, keys in enumerate(batches(page_keys(first, pages))):
        values = [torch.from_numpy(payload(key, size_bytes)) for key in keys]
        meeting.at(f"batch-{number}")
        assert store.batch_set(keys, values), "batch_set failed"
    return pages


def get(path: str, pages: int, size_bytes: int, first: int = 0):
    """The engine's prefetch: how long a prefix is there, then page after page."""
    store = backend(path)
    wanted = page_keys(first, pages)
    absent = page_keys(10**9, 2)
    for keys in batches(wanted):
        assert store.batch_exists_v2(keys + absent).kv_hit_pages == len(keys)
        targets = [torch.full((size_bytes,), 0xEE, dtype=torch.uint8) for _ in keys]
        for key, page in zip(keys, store.batch_get(keys, targets), strict=True):
            assert page is not None, f"{key}: exists, but could not be read"
            check(key, page.numpy(), size_bytes)
    assert store.get(absent[0], torch.empty(size_bytes, dtype=torch.uint8)) is None
    return pages


def read_while_written(path: str, pages: int, size_bytes: int, meet):
    """Reads every page as soon as it exists: it must be whole."""
    meeting = Meeting(meet)
    store = backend(path)
    for number, keys in enumerate(batches(page_keys(0, pages))):
        meeting.at(f"batch-{number}")
        left = list(keys)
        while left:
            for key in [key for key in left if store.exists(key)]:
                page = store.get(key, torch.empty(size_bytes, dtype=torch.uint8))
                check(key, page.numpy(), size_bytes)
                left.remove(key)
    return pages


def fill_beyond_cap(path: str, pages: int, size_bytes: int, cap_bytes: int):
    """Backs up more than the cap allows, in two halves by two engines: the second must count what the first left."""
    put(path, pages // 2, size_bytes, max_size=cap_bytes)
    put(path, pages - pages // 2, size_bytes, first=pages // 2, max_size=cap_bytes)
    return summary(path, pages, size_bytes)


def summary(path: str, pages: int, size_bytes: int):
    """Which pages are there (by number), every one of them checked, and what the files add up to."""
    store = backend(path)
    kept = []
    for number, key in enumerate(page_keys(0, pages)):
        if not store.exists(key):
            continue
        check(key, store.get(key, torch.empty(size_bytes, dtype=torch.uint8)).numpy(), size_bytes)
        kept.append(number)
    return {"kept": kept, "bytes": sum(entry.stat().st_size for entry in os.scandir(path))}


def clear(path: str):
    assert backend(path).clear()
    return os.listdir(path)


def serve(path: str, pages: int, size_bytes: int, passes: int):
    store = backend(path)

    def load(keys: list[str]) -> list[str]:
        targets = [torch.full((size_bytes,), 0xEE, dtype=torch.uint8) for _ in keys]
        came = [(key, page) for key, page in zip(keys, store.batch_get(keys, targets), strict=True) if page is not None]
        for key, page in came:
            check(key, page.numpy(), size_bytes)
        return [key for key, _ in came]

    def save(keys: list[str]) -> None:
        assert store.batch_set(keys, [torch.from_numpy(payload(key, size_bytes)) for key in keys]), "batch_set failed"

    return serve_names(page_keys(0, pages), 32, passes=passes, load=load, store=save,
                       look_up=lambda keys: keys[: store.batch_exists_v2(keys).kv_hit_pages])
