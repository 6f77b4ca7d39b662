#!/usr/bin/env python3
"""First write is free: time from create to rename returning for 9 MiB chunks, minus the same on tmpfs in the same run.

Mount and tmpfs take turns; the bodies of both are kept until the end, so that neither gets warm memory for nothing.
Writes are spaced so that the volume keeps up (--rate). A time bar (p50 < 1 ms, p99 < 10 ms): reported, not judged.
"""

import argparse
import mmap
import os
import time

import bars

STEPS = ("create", "write", "close", "rename", "all")


def store(directory, number, body):
    """Stores one chunk; seconds by step."""
    path = os.path.join(directory, f"chunk-{number:06d}.bin")
    times = [time.perf_counter()]
    fd = os.open(path + ".tmp", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    times.append(time.perf_counter())
    if os.write(fd, body) != len(body):
        raise bars.Failed(f"{path}: short write")
    times.append(time.perf_counter())
    os.close(fd)
    times.append(time.perf_counter())
    os.rename(path + ".tmp", path)
    times.append(time.perf_counter())
    return [after - before for before, after in zip(times, times[1:])] + [times[-1] - times[0]]


def touch_memory(size):
    """A virtual machine's memory is often backed by its host only at the first touch, at 10 x the cost: not measured."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def available_bytes():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def body_of(number, size):
    return number.to_bytes(8, "little") * (size // 8)


def measure(mounted, tmpfs, chunks, size, rate):
    results = {mounted: [], tmpfs: []}
    for number in range(chunks):
        body = body_of(number, size)
        begin = time.monotonic()
        for directory in (mounted, tmpfs) if number % 2 else (tmpfs, mounted):
            results[directory].append(store(directory, number, body))
        time.sleep(max(0.0, size / rate - (time.monotonic() - begin)))
    return results[mounted], results[tmpfs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--size", type=int, default=9 << 20, help="bytes of a chunk")
    parser.add_argument("--rate", type=float, default=200, help="MiB/s that the volume keeps up with")
    parser.add_argument("--warm", type=int, default=0, help="chunks written before, not counted")
    parser.add_argument("--dir", help="directory on the file system to use; default the temporary one")
    options = parser.parse_args()
    bars.binary_or_exit()
    size = options.size // 8 * 8
    chunks = options.warm + options.chunks
    needed = 2 * size * chunks
    if needed > available_bytes() // 2:
        raise SystemExit(f"{chunks} chunks need {needed >> 20} MiB of memory on tmpfs and in the mount: too much here")
    touch_memory(needed + needed // 4)
    tmpfs = bars.scratch("/dev/shm")
    mount = bars.new_mount(bars.scratch(options.dir))
    mount.start()
    counted = slice(options.warm, None)
    results = measure(mount.path, tmpfs, chunks, size, options.rate * (1 << 20))
    results = [part[counted] for part in results]
    for number in range(0, options.chunks, 20):
        with open(os.path.join(mount.path, f"chunk-{number:06d}.bin"), "rb") as file:
            if file.read() != body_of(number, size):
                raise bars.Failed(f"chunk {number} does not read back as written")
    mount.stop()

    print(f"{options.chunks} chunks of {size} bytes at {options.rate:g} MiB/s, milliseconds\n")
    rows = []
    for share in (0.5, 0.9, 0.99):
        values = [[bars.percentile([each[i] for each in part], share) * 1e3 for i in range(len(STEPS))]
                  for part in results]
        for what, row in (("mount", values[0]), ("tmpfs", values[1]),
                          ("difference", [a - b for a, b in zip(*values)])):
            rows.append((f"p{share * 100:g} {what}", *(f"{value:.3f}" for value in row)))
    bars.table(("", *STEPS), rows)
    print("\n  bar: the difference of `all` has p50 < 1 ms and p99 < 10 ms")


if __name__ == "__main__":
    bars.run(main)
