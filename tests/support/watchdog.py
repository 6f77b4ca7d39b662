"""A process beside pytest that frees what a hung or killed test run would leave behind.

A request that a hung FUSE daemon never answers blocks its caller, and a page fault blocks it with python's global lock held, so no thread of
the test process can be relied on to notice. This process reads one JSON command a line on stdin:
  {"op": "mount", "path": P, "pid": N}   P is mounted by daemon N      {"op": "unmount", "path": P}
  {"op": "dir", "path": P}               P is a temporary directory    {"op": "undir", "path": P}
  {"op": "arm", "seconds": S, "what": T} abort every mount after S     {"op": "disarm"}
At the end of stdin (the test process is gone, however it went) everything still registered is killed, unmounted and removed.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

mounts = {}
dirs = set()


def connection_numbers(path):
    """The minor numbers of the FUSE connections mounted at path, without touching path itself."""
    numbers = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(" ")
            if fields[4] == path:
                numbers.append(fields[2].split(":")[1])
    return numbers


def abort(path, pid):
    for number in connection_numbers(path):
        try:
            with open(f"/sys/fs/fuse/connections/{number}/abort", "w", encoding="ascii") as knob:
                knob.write("1")
        except OSError:
            pass
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def free_everything():
    for path, pid in mounts.items():
        abort(path, pid)
        for command in (["umount", "-l", path], ["fusermount3", "-u", "-z", path]):
            if connection_numbers(path):
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    for path in dirs:
        shutil.rmtree(path, ignore_errors=True)


def handle(command, state):
    operation = command["op"]
    if operation == "mount":
        mounts[command["path"]] = command.get("pid", 0)
    elif operation == "unmount":
        mounts.pop(command["path"], None)
    elif operation == "dir":
        dirs.add(command["path"])
    elif operation == "undir":
        dirs.discard(command["path"])
    elif operation == "arm":
        state["deadline"] = time.monotonic() + command["seconds"]
        state["what"] = command["what"]
    elif operation == "disarm":
        state["deadline"] = None


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of stdin is the only order to stop
    state = {"deadline": None, "what": ""}
    pending = b""
    while True:
        wait = None if state["deadline"] is None else max(0.0, state["deadline"] - time.monotonic())
        readable, _, _ = select.select([0], [], [], wait)
        if not readable:
            print(f"watchdog: {state['what']} hangs: aborting {sorted(mounts)}", file=sys.stderr, flush=True)
            for path, pid in mounts.items():
                abort(path, pid)
            state["deadline"] = None
            continue
        data = os.read(0, 65536)
        if not data:
            free_everything()
            return
        pending += data
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            handle(json.loads(line), state)


if __name__ == "__main__":
    main()
