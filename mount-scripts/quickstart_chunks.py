#!/usr/bin/env python3
"""Stores and loads a prefix of KV-cache chunks with the system calls of LMCache's GDS backend in its POSIX mode.

    quickstart_chunks.py store DIRECTORY [--chunks N]
    quickstart_chunks.py load DIRECTORY [--chunks N]

Each chunk stands for 256 tokens of Qwen2.5-0.5B: 24 layers x 2 KV heads x 64 x (K and V) x 2 bytes = 12 KiB a token.
Its bytes follow from its name, so that `load`, a process that never saw the data, can compare every one of them.
"""

import argparse
import hashlib
import json
import mmap
import os
import secrets
import sys
import time
import urllib.parse

TOKENS_PER_CHUNK = 256
SHAPE = [2, 24, TOKENS_PER_CHUNK, 128]
PAYLOAD_BYTES = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3]
HEADER_BYTES = 4096
MODEL = "Qwen/Qwen2.5-0.5B"


def chunk_keys(count):
    """The hash of each chunk's whole prefix: equal prefixes of two prompts give equal names."""
    prefix = b"quickstart"
    for index in range(count):
        prefix = hashlib.sha256(prefix + index.to_bytes(4, "little")).digest()
        yield prefix[:8].hex()


def chunk_path(directory, key):
    name = urllib.parse.quote(f"{MODEL}@1@0@{key}@bfloat16", safe="")
    return os.path.join(directory, key[:2], key[2:4], name + ".kvcache.safetensors")


def header():
    """A safetensors header: its length in 8 bytes, then JSON, padded to a page."""
    tensor = {"kvcache": {"dtype": "BF16", "shape": SHAPE, "data_offsets": [0, PAYLOAD_BYTES]}}
    text = json.dumps(tensor).encode()
    return (HEADER_BYTES - 8).to_bytes(8, "little") + text.ljust(HEADER_BYTES - 8)


def payload(key):
    return hashlib.shake_128(key.encode()).digest(PAYLOAD_BYTES)


def write_whole(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(f"short write to {path}")
    finally:
        os.close(fd)


def store_chunk(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp{secrets.token_hex(4)}"
    write_whole(temporary, header())
    fd = os.open(temporary, os.O_RDWR)
    try:
        os.ftruncate(fd, HEADER_BYTES + len(data))
        mapping = mmap.mmap(fd, HEADER_BYTES + len(data), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    mapping[HEADER_BYTES:] = data
    mapping.close()
    os.rename(temporary, path)
    # The sidecar comes last: a client that finds it may rely on the chunk.
    sidecar = path + ".metadata"
    temporary = f"{sidecar}.tmp{secrets.token_hex(4)}"
    write_whole(temporary, header())
    os.rename(temporary, sidecar)


def open_to_read(path):
    try:
        return os.open(path, os.O_RDONLY | os.O_NOATIME)
    except PermissionError:  # only the owner may ask for O_NOATIME
        return os.open(path, os.O_RDONLY)


def load_chunk(path):
    """The chunk's bytes, or None when the cache does not have it."""
    if not os.path.exists(path + ".metadata"):
        return None
    fd = open_to_read(path + ".metadata")
    try:
        found = os.read(fd, HEADER_BYTES)
    finally:
        os.close(fd)
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        mapping = mmap.mmap(fd, size, mmap.MAP_PRIVATE | mmap.MAP_POPULATE, mmap.PROT_READ)
    finally:
        os.close(fd)
    with mapping:
        return mapping[HEADER_BYTES:] if mapping[:HEADER_BYTES] == found else b""


def report(verb, count, seconds):
    mib = count * (HEADER_BYTES + PAYLOAD_BYTES) / 2**20
    print(f"{verb} {count} chunks ({count * TOKENS_PER_CHUNK} tokens, {mib:.0f} MiB) in {seconds:.2f} s: {mib / seconds:.0f} MiB/s")


def store(directory, count):
    chunks = [(chunk_path(directory, key), payload(key)) for key in chunk_keys(count)]
    started = time.monotonic()
    for path, data in chunks:
        store_chunk(path, data)
    report("stored", count, time.monotonic() - started)
    return 0


def load(directory, count):
    loading = 0.0
    for index, key in enumerate(chunk_keys(count)):
        started = time.monotonic()
        data = load_chunk(chunk_path(directory, key))
        loading += time.monotonic() - started
        if data is None:
            print(f"chunk {index} ({key}) is missing in {directory}", file=sys.stderr)
            return 1
        if data != payload(key):
            print(f"chunk {index} ({key}) has other bytes than were stored", file=sys.stderr)
            return 1
    report("loaded", count, loading)
    print("every byte is the one that was stored")
    return 0


def main():
    parser = argparse.ArgumentParser(description="Stores and loads KV-cache chunks as LMCache's GDS backend does.")
    parser.add_argument("action", choices=["store", "load"])
    parser.add_argument("directory")
    parser.add_argument("--chunks", type=int, default=64, help="how many chunks of 256 tokens (default 64)")
    arguments = parser.parse_args()
    if arguments.chunks < 1:
        parser.error(f"--chunks is {arguments.chunks}; it must be at least 1")
    return (store if arguments.action == "store" else load)(arguments.directory, arguments.chunks)


if __name__ == "__main__":
    sys.exit(main())
