"""What the bars share: a mount that is always cleaned up, percentiles, tables, the files of a volume by kind."""

import atexit
import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import kvc_env  # noqa: E402
import kvc_mount  # noqa: E402


class Failed(Exception):
    """A count bar that is not met."""


def binary_or_exit():
    if not os.access(kvc_env.BINARY, os.X_OK):
        sys.exit(f"KVCACHEFS_BIN={kvc_env.BINARY!r} is not a program; set it to the kvcachefs command to measure")
    kvc_env.BINARY = os.path.abspath(kvc_env.BINARY)


def scratch(parent=None):
    """A fresh directory, removed at the end; `parent` says on which file system."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="kvcachefs-bar-", dir=parent))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def new_mount(base, options=None):
    mount = kvc_mount.Mount(base, options)
    atexit.register(mount.destroy)
    return mount


def run(main):
    """Runs a bar as a script: an interrupt cleans up too, a count bar that is not met is exit code 1."""
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    try:
        main()
    except Failed as failure:
        sys.exit(f"FAILED: {failure}")


def check(met, what, failures):
    print(f"  {'met   ' if met else 'NOT MET'}  {what}")
    if not met:
        failures.append(what)


def finish(failures):
    if failures:
        raise Failed("; ".join(failures))


def table(header, rows):
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        print("  " + "  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip())


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def kind_of(path):
    parts = path.split(os.sep)
    for kind in ("index", "journal", "checkpoint", "checkpoints", "extents"):
        if kind in parts:
            return kind.removesuffix("s") if kind.startswith("checkpoint") else kind
    return "other"


def volume_files(volume):
    """{kind: (files, sum of sizes, bytes on disk)} of everything in the volume."""
    kinds = {}
    for directory, _, names in os.walk(volume):
        for name in names:
            path = os.path.join(directory, name)
            found = os.lstat(path)
            files, size, disk = kinds.get(kind := kind_of(os.path.relpath(path, volume)), (0, 0, 0))
            kinds[kind] = (files + 1, size + found.st_size, disk + found.st_blocks * 512)
    return kinds


def memory_bytes(pid, field="VmRSS"):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0
