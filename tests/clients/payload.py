"""Contents that depend on the name (and a version) alone, so that any process can check what any other stored."""

import hashlib

import numpy as np


def payload(name: str, size_bytes: int, version: int = 0) -> np.ndarray:
    """The bytes stored under `name`: pseudo-random, no two names or versions alike, not compressible."""
    digest = hashlib.sha256(f"{version}/{name}".encode()).digest()
    words = np.frombuffer(digest, dtype="<u8").tolist()
    generator = np.random.SFC64(words)
    raw = generator.random_raw((size_bytes + 7) // 8)
    return raw.view(np.uint8)[:size_bytes]


def check(name: str, data, size_bytes: int, version: int = 0) -> None:
    """Compares every byte; the message says where the first difference is and what kind of damage it looks like."""
    got = np.frombuffer(data, dtype=np.uint8)
    if got.size != size_bytes:
        raise AssertionError(f"{name}: {got.size} bytes, expected {size_bytes}")
    wrong = np.flatnonzero(got != payload(name, size_bytes, version))
    if wrong.size == 0:
        return
    first, last = int(wrong[0]), int(wrong[-1])
    zeros = int(np.count_nonzero(got[first : last + 1] == 0))
    raise AssertionError(
        f"{name} (version {version}): {wrong.size} of {size_bytes} bytes differ, first at {first}, last at {last}; "
        f"{zeros} of the {last + 1 - first} bytes between them are zero"
    )
