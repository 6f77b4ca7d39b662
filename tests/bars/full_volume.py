#!/usr/bin/env python3
"""Stores at a volume that is full against one that has room: rate, longest put, what eviction wrote beside the chunks.

    tests/bars/full_volume.py [--capacity 2G] [--size 9M] [--size 512K] [--size 64K] [--times 10] [--writers 4] [--dir DIR]

Each writer creates a temporary name, writes, closes, renames. First into an empty volume of the same capacity times 0.8, then on
and on until --times the capacity was stored; the two are taken from one mount, so that they share its caches. Judged: no call
failed, and the volume never had more than the capacity (sampled). Times are reported.
"""

import argparse
import os
import sys
import tempfile
import threading
import time

import bars  # noqa: F401  (puts tests/support on the path)
import kvc_mount
import kvc_volume

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def store(path, first, count, size, writers, body):
    """Seconds of each put, by all writers, and of the whole."""
    took, failures = [], []

    def write(index):
        mine = []
        for number in range(first + index, first + count, writers):
            name = os.path.join(path, f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}.bin")
            started = time.perf_counter()
            try:
                fd = os.open(name + ".tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                written = os.write(fd, body)
                os.close(fd)
                os.rename(name + ".tmp", name)
                if written != size:
                    failures.append(f"{name}: {written} bytes")
            except OSError as error:
                failures.append(str(error))
            mine.append(time.perf_counter() - started)
        took.extend(mine)

    started = time.perf_counter()
    threads = [threading.Thread(target=write, args=(index,)) for index in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, time.perf_counter() - started, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", default="1G")
    parser.add_argument("--memory", default="512M")
    parser.add_argument("--size", action="append")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--dir", default="/var/tmp")
    options = parser.parse_args()
    capacity, wrong = bytes_of(options.capacity), False
    print("size   volume  MiB/s  p50 ms  p99 ms  max ms  written/stored  evicted  leases broken  reclaim of store")
    for text in options.size or ["9M", "512K", "64K"]:
        size = bytes_of(text)
        body = os.urandom(size)
        base = tempfile.mkdtemp(prefix="kvcachefs-full.", dir=options.dir)
        with kvc_mount.Mount(base, {"capacity": options.capacity, "keep_free": "1M", "memory": options.memory}) as mount:
            mount.start()
            done, before = 0, mount.status()
            with kvc_volume.Samples(mount.volume) as peak:
                for volume, count in (("empty", capacity * 8 // 10 // size), ("full", (options.times * capacity) // size)):
                    took, seconds, failures = store(mount.path, done, count, size, options.writers, body)
                    mount.drain()
                    after = mount.status()
                    took.sort()
                    stored = count * size
                    written = after["writes"]["volume_bytes"] - before["writes"]["volume_bytes"]
                    went = after["evictions"]["objects"] - before["evictions"]["objects"]
                    broken = after["evictions"]["leases_broken"] - before["evictions"]["leases_broken"]
                    back = after["reclaim"]["bytes"] - before["reclaim"]["bytes"]
                    print(f"{text:6} {volume:6} {stored / seconds / 2**20:6.0f}  {took[len(took) // 2] * 1e3:6.2f}  "
                          f"{took[len(took) * 99 // 100] * 1e3:6.1f}  {took[-1] * 1e3:6.0f}  {written / stored:14.3f}  {went:7}  {broken:13}  "
                          f"{back / stored:8.2f}", flush=True)
                    if failures:
                        wrong = True
                        print(f"{len(failures)} failed, first: {failures[0]}")
                    done, before = done + count, after
            print(f"{text:6} most on the volume: {peak.most / capacity:.3f} of the capacity")
            wrong |= peak.most > capacity
        kvc_mount.remove_temp_dir(base)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
