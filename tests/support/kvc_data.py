"""Chunk contents that depend on the name alone, so that a process that never saw the data can check every byte."""

import functools
import hashlib

import kvc_env


@functools.lru_cache(maxsize=64)  # made before a fork it is there in every child
def payload(name, size, version=0):
    return hashlib.shake_128(f"{name}#{version}".encode(errors="surrogateescape")).digest(size)


def describe_difference(got, expected):
    """One line about how `got` differs: enough to tell torn, zero-filled, short and mixed bodies apart."""
    if len(got) != len(expected):
        return f"{len(got)} bytes instead of {len(expected)}"
    step = 4 * kvc_env.KIB
    bad = [index for index in range(0, len(got), step) if got[index : index + step] != expected[index : index + step]]
    if not bad:
        return "equal"
    zero = sum(not any(got[index : index + step]) for index in bad)
    return f"{len(bad)} of {(len(got) + step - 1) // step} pages of 4 KiB wrong ({zero} all zero), first at {bad[0]}, last at {bad[-1]}"


def assert_bytes(got, expected, what=""):
    if bytes(got) != bytes(expected):
        raise AssertionError(f"{what}: {describe_difference(bytes(got), bytes(expected))}")
