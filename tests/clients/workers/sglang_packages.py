"""Makes the HiCache storage modules of SGLang importable without a GPU stack.

The packages are entered in sys.modules by path, so that no __init__ of them runs (those import triton and the whole
engine), and three modules that the storage code imports for a name or two are replaced by small ones.
"""

import importlib.util
import sys
import types

PACKAGES = ["sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage"]


def _enter_package(name: str) -> None:
    package = types.ModuleType(name)
    if name == "sglang":
        package.__path__ = list(importlib.util.find_spec("sglang").submodule_search_locations)
    else:
        parent, _, last = name.rpartition(".")
        package.__path__ = [f"{path}/{last}" for path in sys.modules[parent].__path__]
    sys.modules[name] = package


def _enter_stub(name: str, **names) -> None:
    stub = types.ModuleType(name)
    stub.__dict__.update(names)
    sys.modules[name] = stub


def _human_readable_int(value: str) -> int:
    return int(value)


def enter() -> None:
    for name in PACKAGES:
        _enter_package(name)
    _enter_stub("sglang.srt.utils.common", human_readable_int=_human_readable_int)
    _enter_stub("sglang.srt.mem_cache.pool_host", HostKVCache=object)
    # The registry of all backends; the tests make theirs by class.
    _enter_stub("sglang.srt.mem_cache.storage.backend_factory", StorageBackendFactory=object)


def storage_config(model_name: str, **extra):
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
        enable_storage_metrics=False, is_page_first_layout=True, model_name=model_name, extra_config=extra or None,
    )
