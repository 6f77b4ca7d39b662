#!/usr/bin/env python3
"""Where the bytes of a volume are, beside the bodies: records of journals and checkpoints by type, tables of the index.

    tests/bars/volume_bytes.py VOLUME [CHUNKS]

Reads the files as they lie there (store/FORMAT.md, and LMDB's pages); the volume should not be mounted. Prints bytes a
chunk. `coalescing.py --bytes` prints this of the volume that it makes.
"""

import collections
import os
import struct
import sys

import bars

RECORDS = {1: "put", 2: "attributes", 3: "name", 4: "unname", 5: "move", 6: "touch", 7: "successors", 8: "synced"}
FRAME_MAGIC, PAGE, NO_PAGE = 0xF7A35EB1, 4096, 2**64 - 1


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def records(path):
    """{type: (records, bytes with lengths)} of a journal or checkpoint; "frames" and "header" are what is around."""
    with open(path, "rb") as file:
        data = file.read()
    checkpoint = bars.kind_of(path) == "checkpoint"
    at = struct.unpack_from("<I", data, 12)[0]
    counts, sizes = collections.Counter(), collections.Counter({"header": at})
    counts["header"] = 1
    while at + 16 <= len(data):
        magic, length = struct.unpack_from("<II", data, at)
        if magic != FRAME_MAGIC:
            break
        payload = data[at + 16 : at + 16 + length]
        at += 16 + length
        counts["frames"] += 1
        if checkpoint:
            inside = 1 if payload[0] == 1 else len(payload)
        else:
            inside = varint(payload, 8)[1]
        sizes["frames"] += 16 + inside
        while inside < len(payload):
            size, start = varint(payload, inside)
            kind = RECORDS.get(payload[start], "other")
            counts[kind] += 1
            sizes[kind] += start + size - inside
            inside = start + size
    return {kind: (counts[kind], sizes[kind]) for kind in sizes}


class Lmdb:
    """The trees of a data.mdb, as of its newest meta page."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        metas = []
        for page in (0, 1):
            start = page * PAGE + 16 + 24
            last, transaction = struct.unpack_from("<QQ", self.data, start + 96)
            metas.append((transaction, last, start + 48))
        _, self.last_page, main = max(metas)
        self.tables = {}
        self.pages_used = 2
        self.walk(self.root(self.data, main), lambda key, value: self.tables.update({key.decode(): value}))

    @staticmethod
    def root(data, at=0):
        return struct.unpack_from("<Q", data, at + 40)[0]

    def walk(self, page, row, seen=None):
        if page == NO_PAGE:
            return
        self.pages_used += 1
        start = page * PAGE
        flags, low, high = struct.unpack_from("<HHH", self.data, start + 10)
        if seen is not None:
            seen["pages"] += 1
        for index in range((low - 16) // 2):
            node = start + struct.unpack_from("<H", self.data, start + 16 + 2 * index)[0]
            first, second, node_flags, key_bytes = struct.unpack_from("<HHHH", self.data, node)
            if flags & 1:
                self.walk(first | second << 16 | node_flags << 32, row, seen)
                continue
            value_bytes = first | second << 16
            key = self.data[node + 8 : node + 8 + key_bytes]
            if row is not None:
                row(key, self.data[node + 8 + key_bytes : node + 8 + key_bytes + value_bytes])
            if seen is not None:
                seen["rows"] += 1
                seen["key"] += key_bytes
                seen["value"] += value_bytes
                seen["overflow"] += (value_bytes + 16 + PAGE - 1) // PAGE if node_flags & 1 else 0
        if not flags & 1 and seen is not None:
            seen["leaves"] += 1
            seen["unused"] += high - low

    def table(self, name):
        seen = collections.Counter()
        self.walk(self.root(self.tables[name]), None, seen)
        return seen


def report(volume, chunks):
    rows = []
    for directory, _, names in sorted(os.walk(volume)):
        for name in sorted(names):
            path = os.path.join(directory, name)
            kind = bars.kind_of(os.path.relpath(path, volume))
            size = os.path.getsize(path)
            if kind in ("journal", "checkpoint"):
                rows.append((f"{kind} {name}", "", size, f"{size / chunks:.1f}", ""))
                for what, (count, length) in sorted(records(path).items(), key=lambda item: -item[1][1]):
                    rows.append((f"  {what}", count, length, f"{length / chunks:.1f}", f"{length / count:.1f} each"))
            elif name == "data.mdb":
                rows.append(("index", "", size, f"{size / chunks:.1f}", ""))
                lmdb = Lmdb(path)
                for table in sorted(lmdb.tables):
                    seen = lmdb.table(table)
                    if not seen["rows"]:
                        continue
                    length = (seen["pages"] + seen["overflow"]) * PAGE
                    rows.append((f"  {table}", seen["rows"], length, f"{length / chunks:.1f}",
                                 f"key {seen['key'] / seen['rows']:.1f}, value {seen['value'] / seen['rows']:.1f}; "
                                 f"{seen['unused'] / seen['leaves'] / PAGE:.0%} of its leaves unused"))
    bars.table(("where", "count", "bytes", "bytes/chunk", ""), rows)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    report(os.path.realpath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 1)
