"""safetensors and torch as writers and readers of tensor files: whole files, slices, mappings private and shared."""

import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from payload import check, payload
from workers.common import Meeting

LAYERS = 4
ROWS = 256


def layer_tensor(file: str, layer: int, size_bytes: int, version: int) -> torch.Tensor:
    raw = torch.from_numpy(payload(f"{file}, layer {layer}", size_bytes, version))
    return raw.view(torch.bfloat16).view(ROWS, -1)


def check_tensor(file: str, layer: int, tensor: torch.Tensor, size_bytes: int, version: int) -> None:
    flat = tensor.contiguous().view(torch.uint8).flatten().numpy()
    check(f"{file}, layer {layer}", flat, size_bytes, version)


def layers_of(file: str, size_bytes: int, version: int) -> dict[str, torch.Tensor]:
    return {f"layer{layer}": layer_tensor(file, layer, size_bytes, version) for layer in range(LAYERS)}


def save(path: str, kind: str, files: list[str], size_bytes: int, version: int = 0, meet=None):
    meeting = Meeting(meet)
    for number, file in enumerate(files):
        tensors = layers_of(file, size_bytes, version)
        meeting.at(f"file-{number}")
        if kind == "safetensors":
            save_file(tensors, os.path.join(path, f"{file}.safetensors"), metadata={"version": str(version)})
        else:
            torch.save(tensors, os.path.join(path, f"{file}.pt"))
    return len(files)


def load(path: str, kind: str, files: list[str], size_bytes: int, version: int = 0):
    for file in files:
        name = os.path.join(path, f"{file}.{'safetensors' if kind == 'safetensors' else 'pt'}")
        if kind == "safetensors":
            tensors = load_file(name)
        else:
            tensors = torch.load(name, mmap=kind == "torch mmap", weights_only=True)
        assert sorted(tensors) == [f"layer{layer}" for layer in range(LAYERS)]
        for layer in range(LAYERS):
            check_tensor(file, layer, tensors[f"layer{layer}"], size_bytes, version)
    return len(files)


def load_slices(path: str, files: list[str], size_bytes: int, version: int = 0):
    """Row ranges of one tensor through safe_open, as a tensor-parallel rank loads its share, and the metadata."""
    for file in files:
        with safe_open(os.path.join(path, f"{file}.safetensors"), framework="pt") as opened:
            assert opened.metadata() == {"version": str(version)}
            for layer in range(LAYERS):
                rows = opened.get_slice(f"layer{layer}")
                assert rows.get_shape()[0] == ROWS
                parts = [rows[start : start + 64] for start in range(0, ROWS, 64)]
                check_tensor(file, layer, torch.cat(parts), size_bytes, version)
    return len(files)


def write_shared(path: str, files: list[str], size_bytes: int, version: int = 0, every: int = 1, first: int = 0,
                 meet=None):
    """torch.from_file(shared=True): creates and sizes the file, maps it shared, and writes by memory access. Writes
    the layers first, first + every, ... so that two processes can share one file."""
    meeting = Meeting(meet)
    for number, file in enumerate(files):
        mapped = torch.from_file(os.path.join(path, f"{file}.raw"), shared=True, size=LAYERS * size_bytes,
                                 dtype=torch.uint8)
        meeting.at(f"file-{number}")
        for layer in range(first, LAYERS, every):
            content = payload(f"{file}, layer {layer}", size_bytes, version)
            mapped[layer * size_bytes : (layer + 1) * size_bytes] = torch.from_numpy(content)
        meeting.at(f"written-{number}")
        for layer in range(LAYERS):  # what the other wrote is seen through the same mapping, if there is another
            if meet is not None or layer in range(first, LAYERS, every):
                part = mapped[layer * size_bytes : (layer + 1) * size_bytes]
                check_tensor(file, layer, part, size_bytes, version)
    return len(files)


def read_shared(path: str, files: list[str], size_bytes: int, version: int = 0):
    for file in files:
        name = os.path.join(path, f"{file}.raw")
        assert os.path.getsize(name) == LAYERS * size_bytes
        for shared in (True, False):
            mapped = torch.from_file(name, shared=shared, size=LAYERS * size_bytes, dtype=torch.uint8)
            for layer in range(LAYERS):
                part = mapped[layer * size_bytes : (layer + 1) * size_bytes]
                check_tensor(file, layer, part, size_bytes, version)
    return len(files)
