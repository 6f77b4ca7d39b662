"""The `memory` option bounds what the daemon holds, and back-pressure never becomes a deadlock."""

import os
import threading

import pytest

import kvc_native
from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_native import Native, aligned, require_whole
from kvc_process import in_processes

MEMORY = 256 * MIB
ALLOWANCE = 300 * MIB

pytestmark = pytest.mark.needs_daemon


def peak_resident_bytes(pid):
    """The daemon's own memory: anonymous and shared pages, not pages of mapped files, which the kernel may drop."""
    fields = {}
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            fields[key] = value.split()
    return int(fields["VmHWM"][0]) * 1024


def writers(mount, count, size, direct, process):
    """`count` threads, each: create, one libaio write of everything, close, rename."""
    failures = []
    gate = threading.Barrier(count)
    bodies = [aligned(payload(f"aio/{process}/{index}", size)) for index in range(count)]

    def write(index):
        try:
            path = os.path.join(mount.path, f"chunk-{process}-{index}")
            fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | direct, 0o644)
            gate.wait()
            requests = [(fd, bodies[index], 0)]
            require_whole(Native.get().aio(requests, write=True), requests)
            os.close(fd)
            os.rename(f"{path}.tmp", path)
        except BaseException as error:
            failures.append(error)
            gate.abort()

    threads = [threading.Thread(target=write, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure


def check(mount, count, size, process):
    for index in range(count):
        with open(os.path.join(mount.path, f"chunk-{process}-{index}"), "rb") as file:
            assert_bytes(file.read(), payload(f"aio/{process}/{index}", size), f"chunk-{process}-{index}")


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "odirect"])
def test_64_libaio_writers_at_twice_the_memory(direct, new_mount):
    mount = new_mount({"memory": "256M"})
    in_processes([(writers, mount, 16, 8 * MIB, direct, process) for process in range(4)])
    assert mount.status()["memory"]["used_bytes"] <= MEMORY
    in_processes([(check, mount, 16, 8 * MIB, process) for process in range(4)])
    assert mount.status()["memory"]["used_bytes"] <= MEMORY
    peak = peak_resident_bytes(mount.pid)
    assert peak <= MEMORY + ALLOWANCE, f"peak RSS {peak / MIB:.0f} MiB"
    mount.remount()
    in_processes([(check, mount, 16, 8 * MIB, process) for process in range(2)])


def test_one_body_larger_than_the_memory(new_mount):
    """Spilled to the volume while it is still being written."""
    mount = new_mount({"memory": "64M"})
    path, size = os.path.join(mount.path, "large"), 192 * MIB
    body = payload("large", size)
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, 8 * MIB):
            assert file.write(body[start : start + 8 * MIB]) == 8 * MIB
        os.pwrite(file.fileno(), b"patched", 10 * MIB)
    expected = body[: 10 * MIB] + b"patched" + body[10 * MIB + 7 :]
    assert mount.status()["memory"]["used_bytes"] <= 64 * MIB
    assert peak_resident_bytes(mount.pid) <= 64 * MIB + ALLOWANCE
    for _ in range(2):
        with open(path, "rb") as file:
            assert_bytes(file.read(), expected, "large")
        mount.remount()


def test_punch_of_more_than_the_memory(new_mount):
    """A hole larger than the memory option in a sealed body, by fallocate and by truncation down and up."""
    mount = new_mount({"memory": "64M"})
    path, size = os.path.join(mount.path, "large"), 160 * MIB
    body = payload("punch", size)
    with open(path, "wb") as file:
        file.write(body)
    mount.remount()
    fd = os.open(path, os.O_RDWR)
    kvc_native.fallocate(fd, kvc_native.FALLOC_FL_PUNCH_HOLE | kvc_native.FALLOC_FL_KEEP_SIZE, 10 * MIB + 5, 120 * MIB)
    os.close(fd)
    expected = body[: 10 * MIB + 5] + bytes(120 * MIB) + body[130 * MIB + 5 :]
    for _ in range(2):
        with open(path, "rb") as file:
            assert_bytes(file.read(), expected, "punched")
        mount.remount()
    os.truncate(path, 1000)
    os.truncate(path, size)
    with open(path, "rb") as file:
        assert_bytes(file.read(), body[:1000] + bytes(size - 1000), "cut and grown")


def test_many_open_unfinished_files_beyond_the_memory(new_mount):
    """96 files of 2 MiB stay open and unsealed with 64 MiB of memory: none can wait for another's RELEASE."""
    mount = new_mount({"memory": "64M"})
    fds = []
    for index in range(96):
        fd = os.open(os.path.join(mount.path, f"open{index}"), os.O_RDWR | os.O_CREAT)
        assert os.write(fd, payload(f"open/{index}", 2 * MIB)) == 2 * MIB
        fds.append(fd)
    for index, fd in enumerate(fds):
        assert_bytes(os.pread(fd, 2 * MIB, 0), payload(f"open/{index}", 2 * MIB), f"open{index}")
        os.pwrite(fd, b"end", 2 * MIB)
        os.close(fd)
    mount.remount()
    for index in range(96):
        with open(os.path.join(mount.path, f"open{index}"), "rb") as file:
            assert_bytes(file.read(), payload(f"open/{index}", 2 * MIB) + b"end", f"open{index}")
