#!/usr/bin/env python3
"""1,000,000 chunks in one flat directory: mount time, memory, listings, rebuild of the index, mount after kill -9.

Judged (exit code): every listing has every name once, bytes read back as written, what an index rebuild shows equals
what was there, nothing acknowledged by a drain is lost by kill -9, resident memory beyond the `memory` option at most
300 MiB. Times are reported. Bodies have 64 to 4032 bytes. Needs a C compiler.
"""

import argparse
import collections
import errno
import os
import shutil
import subprocess
import sys
import time

import bars
import kvc_mount

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
MOST_BEYOND_MEMORY = 300 * MIB


def name_of(number):
    return f"chunk-{number:026d}.bin"


def body_of(number):
    size = 64 + number * 977 % 63 * 64
    name = name_of(number).encode()
    return (name * (size // len(name) + 1))[:size]


class Bar:
    def __init__(self, options):
        self.options = options
        self.base = bars.scratch(options.dir)
        self.mount = bars.new_mount(self.base, {"memory": f"{options.memory}M"})
        self.rows, self.failures = [], []
        self.writer = os.path.join(self.base, "put_many")
        compiler = shutil.which("cc") or shutil.which("gcc") or sys.exit("no C compiler for put_many.c")
        subprocess.run([compiler, "-O2", "-pthread", "-o", self.writer, os.path.join(HERE, "put_many.c")], check=True)

    @property
    def flat(self):
        return os.path.join(self.mount.path, "flat")

    def note(self, what, value, remark=""):
        self.rows.append((what, value, remark))
        print(f"  {what}: {value} {remark}", flush=True)

    def check(self, met, what):
        bars.check(met, what, self.failures)

    def timed(self, what, action, remark=""):
        begin = time.monotonic()
        result = action()
        self.note(what, f"{time.monotonic() - begin:.2f} s", remark)
        return result

    def put(self, first, count):
        subprocess.run([self.writer, self.flat, str(first), str(count), str(self.options.threads)], check=True)

    def mount_and_look_up(self, what):
        """From starting the command to the answer of the first lookup of a chunk."""
        begin = time.monotonic()
        self.mount.start()
        mounted = time.monotonic() - begin
        self.wait_for_lookup()
        ready = [line for line in self.mount.log_text(self.mount.log_start).splitlines() if "ready after" in line]
        self.note(what, f"{time.monotonic() - begin:.2f} s",
                  f"(mounted {mounted:.2f} s; {ready[-1].rpartition(', ')[2] if ready else 'no line in the log'})")

    def wait_for_lookup(self):
        """After kill -9 the dead mount is there at first (ENOTCONN), then for a moment none (ENOENT)."""
        path = os.path.join(self.flat, name_of(self.options.chunks // 2))
        deadline = time.monotonic() + 1200
        while True:
            try:
                os.stat(path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTCONN, errno.ENOENT) or time.monotonic() > deadline:
                    raise
            if self.mount.process.poll() is not None:
                raise bars.Failed(f"the daemon ended:\n{self.mount.log_text(self.mount.log_start)}")
            time.sleep(0.005)

    def memory(self, when, judge=True):
        pool = self.mount.status()["memory"]["used_bytes"]
        resident = bars.memory_bytes(self.mount.pid)
        beyond = resident - self.options.memory * MIB
        self.note(f"resident memory {when}", f"{resident / MIB:.0f} MiB",
                  f"(anonymous {bars.memory_bytes(self.mount.pid, 'RssAnon') / MIB:.0f} MiB; bodies in RAM "
                  f"{pool / MIB:.0f} MiB of the memory option's {self.options.memory} MiB)")
        if judge:
            self.check(beyond <= MOST_BEYOND_MEMORY, f"{when}: {beyond / MIB:.0f} MiB beyond the memory option (at most 300)")

    def list_names(self, what, count, *command):
        """Every name once; `command` prints one a line, the name last."""
        begin = time.monotonic()
        listing = subprocess.run([*command, self.flat], stdout=subprocess.PIPE, check=True).stdout
        seconds = time.monotonic() - begin
        seen = collections.Counter(line.rpartition(b" ")[2] for line in listing.splitlines() if b"chunk-" in line)
        twice = sum(1 for times in seen.values() if times > 1)
        missing = sum(1 for number in range(count) if name_of(number).encode() not in seen)
        self.note(what, f"{seconds:.2f} s", f"({seconds / count * 1e6:.1f} us a name)")
        self.check(len(seen) == count and twice == 0 and missing == 0,
                   f"{what}: {len(seen)} names of {count}, {missing} missing, {twice} listed twice")

    def check_bodies(self, what, count):
        wrong = 0
        for number in range(0, count, max(1, count // 2000)):
            with open(os.path.join(self.flat, name_of(number)), "rb") as file:
                wrong += file.read() != body_of(number)
        self.check(wrong == 0, f"{what}: {wrong} of 2000 bodies read differ")

    def attributes(self, count):
        """What the rebuilt index must show again."""
        result = []
        for number in range(0, count, max(1, count // 2000)):
            found = os.stat(os.path.join(self.flat, name_of(number)))
            result.append((found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns, found.st_blocks))
        return result

    def index_directory(self):
        return self.mount.status()["index"]

    def write(self):
        count = self.options.chunks
        self.mount.start()
        os.mkdir(self.flat)
        self.timed(f"write {count} chunks", lambda: self.put(0, count), f"({self.options.threads} threads)")
        self.timed("drain", self.mount.drain)
        self.memory("after writing", judge=False)  # with the working set of a million new objects
        self.timed("unmount", lambda: self.mount.stop(1200))
        for kind, (files, size, disk) in sorted(bars.volume_files(self.mount.volume).items()):
            self.note(f"volume: {kind}", f"{disk / MIB:.1f} MiB", f"({files} files, {disk / count:.0f} bytes a chunk)")

    def look(self):
        count = self.options.chunks
        self.mount_and_look_up("first lookup, index up to date")
        self.memory("after the mount")
        self.list_names("ls -f", count, "ls", "-f")
        self.list_names("ls -l", count, "ls", "-l")
        self.memory("after listing")
        self.check_bodies("after a remount", count)

    def rebuild(self):
        count = self.options.chunks
        index, before = self.index_directory(), self.attributes(count)
        self.mount.stop(1200)
        shutil.rmtree(index)
        self.mount_and_look_up("first lookup, index deleted")
        self.memory("after a rebuild")
        self.check(self.attributes(count) == before, "attributes after the rebuild equal those before")
        self.list_names("ls -f after the rebuild", count, "ls", "-f")
        self.check_bodies("after the rebuild", count)

    def crash(self):
        count, more = self.options.chunks, self.options.chunks // 10
        self.put(count, more)
        self.mount.drain()
        self.mount.kill()
        self.mount_and_look_up(f"first lookup, kill -9 after {more} more")
        self.list_names("ls -f after kill -9", count + more, "ls", "-f")
        self.check_bodies("after kill -9", count + more)
        index = self.index_directory()
        self.mount.kill()
        shutil.rmtree(index)
        self.mount_and_look_up("first lookup, kill -9 and index deleted")
        self.list_names("ls -f after that", count + more, "ls", "-f")
        self.check_bodies("after that", count + more)
        self.mount.stop(1200)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--memory", type=int, default=1024, help="the mount's memory option, in MiB")
    parser.add_argument("--dir", help="directory on the file system to use; default the temporary one")
    options = parser.parse_args()
    bars.binary_or_exit()
    kvc_mount.kvc_env.SCALE = max(kvc_mount.kvc_env.SCALE, 10.0)  # a hang fails, a slow machine does not
    bar = Bar(options)
    for part in (bar.write, bar.look, bar.rebuild, bar.crash):
        print(f"{part.__name__}:")
        part()
    print()
    bars.table(("measure", "value", ""), bar.rows)
    bars.finish(bar.failures)


if __name__ == "__main__":
    bars.run(main)
