#!/usr/bin/env python3
"""The coalescing bar: 10,000 chunks of 64 KiB in 4096 x 256 leaf directories become a few large files.

Bars (counts, they decide the exit code): at most 40 files on the volume; extents 1.00 to 1.03 x payload; journal,
checkpoint and index at most 400 bytes a chunk; at least 100 x fewer name operations on the volume than the same
writer makes on a plain directory. Needs strace.
"""

import argparse
import collections
import os
import re
import shutil
import stat
import subprocess
import sys
import time

import bars
import kvc_env
import vllm_writer
import volume_bytes

CALLS = {
    "create": ("creat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"),
    "open": ("open", "openat", "openat2"),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat", "rmdir"),
    "mkdir": ("mkdir", "mkdirat"),
}
KIND = {call: kind for kind, calls in CALLS.items() for call in calls}
WRITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vllm_writer.py")


def strace(output):
    calls = ",".join("?" + call for call in KIND)
    return [shutil.which("strace") or "strace", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "4096", "-e", "signal=none",
            "-e", f"trace={calls}", "-o", output]


def name_operations(output, root):
    """Name operations below `root` in an strace log, failed ones too; an open that may create is a create."""
    counts = collections.Counter()
    with open(output, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = re.match(r"\d+\s+(\w+)\(", line)
            if not match or match[1] not in KIND or root not in line:
                continue
            kind = KIND[match[1]]
            counts["create" if kind == "open" and "O_CREAT" in line else kind] += 1
    return counts


def mount_traced(mount, base, output):
    """Starts the daemon below strace; only this start, not the later `kvcachefs umount`."""
    wrapper = os.path.join(base, "traced")
    with open(wrapper, "w", encoding="utf-8") as script:
        script.write("#!/bin/sh\nexec " + " ".join(strace(output)) + f" '{kvc_env.BINARY}' \"$@\"\n")
    os.chmod(wrapper, stat.S_IRWXU)
    command, kvc_env.BINARY = kvc_env.BINARY, wrapper
    try:
        mount.start()
    finally:
        kvc_env.BINARY = command


def check_content(root, chunks, size, flat):
    for number in range(0, chunks, max(1, chunks // 500)):
        path, body = vllm_writer.chunk(root, number, size, flat)
        with open(path, "rb") as file:
            if file.read() != body:
                raise bars.Failed(f"{path} does not hold what was written")


def measure(base, chunks, size, flat=False, breakdown=False):
    """Runs both; returns (volume files by kind, operations on the volume, operations of the plain run, seconds)."""
    mount = bars.new_mount(base)
    mounted_log, plain_log = os.path.join(base, "mounted.strace"), os.path.join(base, "plain.strace")
    try:
        mount_traced(mount, base, mounted_log)
        begin = time.monotonic()
        writer = [sys.executable, "-S", "-E", WRITER]
        arguments = [str(chunks), str(size), *(["flat"] if flat else [])]
        subprocess.run([*writer, mount.path, *arguments], check=True)
        seconds = time.monotonic() - begin
        mount.stop()
        files = bars.volume_files(mount.volume)  # as unmount left it
        if breakdown:
            volume_bytes.report(mount.volume, chunks)
            print()
        mount.start()
        check_content(mount.path, chunks, size, flat)
        mount.stop()
    finally:
        mount.destroy()
    plain = os.path.join(base, "plain")
    os.mkdir(plain)
    subprocess.run([*strace(plain_log), *writer, plain, *arguments], check=True)
    shutil.rmtree(plain)
    return files, name_operations(mounted_log, mount.volume), name_operations(plain_log, plain), seconds


def report(chunks, size, files, on_volume, on_plain, seconds):
    payload = chunks * size
    print(f"{chunks} chunks of {size} bytes in {seconds:.1f} s (daemon under strace)\n")
    bars.table(
        ("on the volume", "files", "size", "on disk", "bytes/chunk", "x payload"),
        [(kind, count, length, disk, f"{disk / chunks:.1f}", f"{disk / payload:.4f}")
         for kind, (count, length, disk) in sorted(files.items())],
    )
    print()
    bars.table(
        ("name operations", *CALLS, "all"),
        [(what, *(counts[kind] for kind in CALLS), sum(counts.values()))
         for what, counts in (("volume", on_volume), ("plain directory", on_plain))],
    )
    print()


def judge(chunks, size, files, on_volume, on_plain):
    failures = []
    number = sum(count for count, _, _ in files.values())
    extents = files.get("extents", (0, 0, 0))[2] / (chunks * size)
    rest = sum(disk for kind, (_, _, disk) in files.items() if kind != "extents") / chunks
    ratio = sum(on_plain.values()) / max(1, sum(on_volume.values()))
    bars.check(number <= 40, f"{number} files on the volume (at most 40)", failures)
    bars.check(1.00 <= extents <= 1.03, f"extents {extents:.4f} x payload (1.00 to 1.03)", failures)
    bars.check(rest <= 400, f"journal, checkpoint, index and the rest {rest:.0f} bytes a chunk (at most 400)", failures)
    bars.check(ratio >= 100, f"{ratio:.0f} x fewer name operations than on a plain directory (at least 100)", failures)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=65_536, help="bytes of a chunk")
    parser.add_argument("--flat", action="store_true", help="all in one directory")
    parser.add_argument("--bytes", action="store_true", help="also say where the bytes of journal and index are")
    parser.add_argument("--dir", help="directory on the file system to use; default the temporary one")
    options = parser.parse_args()
    bars.binary_or_exit()
    if shutil.which("strace") is None:
        sys.exit("strace is not installed: name operations cannot be counted")
    measured = measure(bars.scratch(options.dir), options.chunks, options.size, options.flat, options.bytes)
    report(options.chunks, options.size, *measured)
    bars.finish(judge(options.chunks, options.size, *measured[:3]))


if __name__ == "__main__":
    bars.run(main)
