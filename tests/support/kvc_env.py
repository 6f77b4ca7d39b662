"""Where the command under test is, and how long a test may wait for it.

KVCACHEFS_BIN            path of the `kvcachefs` command
KVCACHEFS_PLAIN=1        run on a plain directory instead: shows that the call sequences themselves are right
KVCACHEFS_LONG=1         the long forms (a million names, 200,000 random operations)
KVCACHEFS_QUICK=1        fewer names, operations and clients
KVCACHEFS_TIMEOUT_SCALE  multiplies every deadline (sanitizer builds are slow)
KVCACHEFS_TEST_OPTIONS   mount options added to every mount that does not set them itself (`passthrough=off,io_uring=off`)
KVCACHEFS_SEED           seed of the randomised tests; printed by each of them
"""

import functools
import mmap
import os
import random

BINARY = os.environ.get("KVCACHEFS_BIN", "")
PLAIN = os.environ.get("KVCACHEFS_PLAIN") == "1"
LONG = os.environ.get("KVCACHEFS_LONG") == "1"
QUICK = os.environ.get("KVCACHEFS_QUICK") == "1"
SCALE = float(os.environ.get("KVCACHEFS_TIMEOUT_SCALE", "1"))
EXTRA_OPTIONS = [part for part in os.environ.get("KVCACHEFS_TEST_OPTIONS", "").split(",") if part]

KIB = 1 << 10
MIB = 1 << 20


@functools.cache
def has_sanitizer():
    """Whether the command is built with one: its resident memory then says little about the program."""
    with open(BINARY, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(symbol) >= 0 for symbol in (b"__asan_init", b"__tsan_init"))


def seed():
    """The seed of a randomised test, printed so that a failure can be repeated."""
    text = os.environ.get("KVCACHEFS_SEED")
    value = int(text) if text else random.SystemRandom().randrange(1 << 32)
    print(f"KVCACHEFS_SEED={value}")
    return value
