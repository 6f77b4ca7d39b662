"""Chunks that describe themselves: every page tells name, version and its own place, so that any byte read anywhere can be judged.

Only python's core is needed: nodes of the lab have no more.
"""

import hashlib
import struct

PAGE = 4096
MAGIC = b"KVCL"


def make(name, size, version=0):
    """The content of `name`: pages that nothing else has; the first one begins with what the chunk is."""
    seed = hashlib.shake_128(f"{name}#{version}#{size}".encode()).digest(24)
    text = name.encode()
    head = MAGIC + struct.pack("<QQH", size, version, len(text)) + text
    pages = []
    for page in range((size + PAGE - 1) // PAGE):
        pages.append((seed + struct.pack("<Q", page)) * (PAGE // 32))
    body = bytearray(b"".join(pages)[:size])
    if size >= len(head):
        body[: len(head)] = head
    return bytes(body)


def what_is_wrong(name, content):
    """(version, None) of a whole chunk, (None, what is wrong) of any other bytes."""
    if content[:4] != MAGIC or len(content) < 22:
        return None, f"no chunk: {len(content)} bytes, begins with {content[:16].hex()}"
    size, version, length = struct.unpack_from("<QQH", content, 4)
    told = content[22 : 22 + length].decode(errors="replace")
    if told != name:
        return None, f"is {told}"
    if size != len(content):
        return None, f"{len(content)} bytes instead of {size}"
    right = make(name, size, version)
    if content == right:
        return version, None
    bad = [at for at in range(0, size, PAGE) if content[at : at + PAGE] != right[at : at + PAGE]]
    zero = sum(not any(content[at : at + PAGE]) for at in bad)
    return None, f"version {version}: {len(bad)} pages of 4 KiB wrong ({zero} all zero), first at {bad[0]}"
