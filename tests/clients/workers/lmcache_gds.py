"""LMCache's GdsBackend. "Device memory" is host memory, by the two small libraries in shim/."""

import asyncio
import ctypes
import ctypes.util
import os
import threading

SHIMS = os.environ["CLIENTS_SHIMS"]
_find_library = ctypes.util.find_library


def _find_shim(name: str):
    path = os.path.join(SHIMS, f"lib{name}.so")
    return path if name in ("cudart", "cufile") else _find_library(name)


# Loaded before anyone asks, so that a later dlopen("libcufile.so") is answered with it by its soname.
ctypes.CDLL(os.path.join(SHIMS, "libcudart.so"), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.path.join(SHIMS, "libcufile.so"), mode=ctypes.RTLD_GLOBAL)
ctypes.util.find_library = _find_shim

import cufile  # noqa: E402,F401  a missing extension must fail the import, not a later fallback
import numpy as np  # noqa: E402
import torch  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.gds_backend import GdsBackend  # noqa: E402

from payload import check, payload  # noqa: E402
from workers.common import Meeting, direct_opens, serve as serve_names  # noqa: E402

# 0.5.6 starts its scan before __init__ sets this, and the scan thread may come first.
GdsBackend._use_noatime = True

MODEL = "meta-llama/Llama-3.1-8B"
BUFFER_MIB = 512
LAYERS = 4
HIDDEN = 512


class Engine:
    """A GdsBackend with its event loop, as a serving process has them."""

    def __init__(self, path: str, mode: str):
        use_gds = mode != "posix"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        config = LMCacheEngineConfig.from_dict({
            "gds_path": path, "gds_buffer_size": BUFFER_MIB, "use_gds": use_gds, "chunk_size": 256,
            "extra_config": {"use_direct_io": mode == "gds-direct"},
        })
        metadata = LMCacheMetadata(
            model_name=MODEL, world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
            kv_dtype=torch.bfloat16, kv_shape=(LAYERS, 2, 256, 8, HIDDEN // 8),
        )
        self.backend = GdsBackend(config, metadata, self._loop, dst_device="cuda:0")
        assert self.backend.use_gds == use_gds, f"use_gds={self.backend.use_gds}, asked for {use_gds}"

    def scan(self) -> int:
        """Waits for the start scan; how many keys it found."""
        self.backend._scan_metadata_future.result(60)
        return len(self.backend.hot_cache)

    def close(self) -> None:
        self.backend.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def chunk_keys(names: list[str], layerwise: bool) -> list:
    keys = []
    for name in names:
        chunk_hash = int.from_bytes(payload(f"hash of {name}", 8).tobytes(), "little")
        key = CacheEngineKey(MODEL, 1, 0, chunk_hash, torch.bfloat16)
        keys.extend(key.split_layers(LAYERS) if layerwise else [key])
    return keys


def shape_of(layerwise: bool, tokens: int):
    return torch.Size([tokens, 2, HIDDEN] if layerwise else [2, LAYERS, tokens, HIDDEN])


def store_batch(backend: GdsBackend, keys: list, tokens: int, layerwise: bool) -> None:
    memory_format = MemoryFormat.KV_T2D if layerwise else MemoryFormat.KV_2LTD
    objects = []
    for key in keys:
        memory = backend.allocate(shape_of(layerwise, tokens), torch.bfloat16, memory_format, eviction=False)
        assert memory is not None, "device buffer too small for the test"
        flat = memory.tensor.view(torch.uint8).flatten()
        flat.copy_(torch.from_numpy(payload(key.to_string(), flat.numel())))
        objects.append(memory)
    done = []
    for future in backend.batched_submit_put_task(keys, objects, on_complete_callback=done.append):
        future.result(60)
    # A failed put is only logged by the backend; the callback comes for the ones that succeeded.
    missing = [key.to_string() for key in keys if key not in done]
    assert not missing, f"{len(missing)} of {len(keys)} puts failed, first {missing[0]}"
    for memory in objects:
        memory.ref_count_down()


def put(path: str, mode: str, names: list[str], tokens: int, layerwise: bool = False, rounds: int = 1, meet=None):
    """Stores every chunk; with more than one process, all store the same keys, meeting before each round."""
    meeting = Meeting(meet)
    engine = Engine(path, mode)
    engine.scan()
    for number in range(rounds):
        keys = chunk_keys([f"{number}/{name}" for name in names], layerwise)
        meeting.at(f"round-{number}")
        store_batch(engine.backend, keys, tokens, layerwise)
    engine.close()  # waits for the sidecars
    lost = [key for number in range(rounds) for key in chunk_keys([f"{number}/{n}" for n in names], layerwise)
            if key not in engine.backend.hot_cache]
    assert not lost, f"{len(lost)} sidecars were not written, first {lost[0].to_string()}"
    return direct_opens()


def load_batch(backend: GdsBackend, keys: list, tokens: int, layerwise: bool) -> list:
    """The keys that could be loaded, compared."""
    size = 2 * tokens * HIDDEN * 2 * (1 if layerwise else LAYERS)
    came = []
    for key, memory in zip(keys, backend.batched_get_blocking(keys), strict=True):
        if memory is None:
            continue
        assert tuple(memory.tensor.shape) == tuple(shape_of(layerwise, tokens)), memory.tensor.shape
        check(key.to_string(), memory.tensor.view(torch.uint8).flatten().numpy(), size)
        memory.ref_count_down()
        came.append(key)
    return came


def compare_batch(backend: GdsBackend, keys: list, tokens: int, layerwise: bool) -> None:
    came = load_batch(backend, keys, tokens, layerwise)
    assert len(came) == len(keys), f"{len(keys) - len(came)} of {len(keys)} are known, but could not be loaded"


def get_after_scan(path: str, mode: str, names: list[str], tokens: int, layerwise: bool = False, rounds: int = 1):
    """A new engine: the start scan must find every key and nothing else, and every byte must be right."""
    engine = Engine(path, mode)
    found = engine.scan()
    expected = 0
    for number in range(rounds):
        keys = chunk_keys([f"{number}/{name}" for name in names], layerwise)
        expected += len(keys)
        unknown = [key.to_string() for key in keys if key not in engine.backend.hot_cache]
        assert not unknown, f"the start scan did not find {len(unknown)} of {len(keys)} keys, first {unknown[0]}"
        compare_batch(engine.backend, keys, tokens, layerwise)
    assert found == expected, f"the start scan found {found} keys, expected {expected}"
    assert engine.backend._use_noatime, "O_NOATIME was refused"
    engine.close()
    return direct_opens()


def lookup_while_stored(path: str, mode: str, names: list[str], tokens: int, meet):
    """An engine that started on an empty directory: absent keys are absent, and appear once another has stored them."""
    meeting = Meeting(meet)
    engine = Engine(path, mode)
    assert engine.scan() == 0
    keys = chunk_keys(names, False)
    assert not any(engine.backend.contains(key) for key in keys)
    meeting.at("all absent")
    meeting.at("stored")
    hits = [engine.backend.contains(key) for key in keys]
    assert all(hits), f"lookup by sidecar found {sum(hits)} of {len(keys)} keys"
    compare_batch(engine.backend, keys, tokens, False)
    assert not engine.backend.contains(chunk_keys(["never stored"], False)[0])
    assert engine.backend._use_noatime, "O_NOATIME was refused"
    engine.close()
    return len(keys)


def store_when_absent(path: str, mode: str, names: list[str], tokens: int, meet):
    """The other half of lookup_while_stored."""
    meeting = Meeting(meet)
    engine = Engine(path, mode)
    meeting.at("all absent")
    store_batch(engine.backend, chunk_keys(names, False), tokens, False)
    engine.close()
    meeting.at("stored")
    return len(names)


def read_while_written(path: str, mode: str, names: list[str], tokens: int, rounds: int, meet):
    """Looks keys up and loads them while others write them: whatever is found must be whole."""
    meeting = Meeting(meet)
    engine = Engine(path, mode)
    engine.scan()
    loads = 0
    for number in range(rounds):
        keys = chunk_keys([f"{number}/{name}" for name in names], False)
        meeting.at(f"round-{number}")
        left = set(range(len(keys)))
        while left:
            for index in sorted(left):
                if engine.backend.contains(keys[index]):
                    compare_batch(engine.backend, [keys[index]], tokens, False)
                    left.discard(index)
                    loads += 1
    engine.close()
    return loads


def serve(path: str, mode: str, names: list[str], tokens: int, passes: int):
    """The backend never looks at a name again that it knows: it learns by the load that the chunk is gone."""
    engine = Engine(path, mode)
    engine.scan()
    by_name = dict(zip(names, chunk_keys(names, False), strict=True))
    name_of = {key: name for name, key in by_name.items()}
    keys = lambda wanted: [by_name[name] for name in wanted]  # noqa: E731
    counts = serve_names(
        names, 4, passes=passes,
        look_up=lambda wanted: [name for name in wanted if engine.backend.contains(by_name[name])],
        load=lambda wanted: [name_of[key] for key in load_batch(engine.backend, keys(wanted), tokens, False)],
        store=lambda missing: store_batch(engine.backend, keys(missing), tokens, False),
    )
    engine.close()
    return counts
