"""The `memory` option bounds what the daemon holds, and back-pressure never becomes a deadlock."""

import errno
import functools
import os
import random
import resource
import threading
import time

import pytest

import kvc_env
import kvc_native
from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, wait_until
from kvc_native import Native, aligned, require_whole
from kvc_process import in_processes

MEMORY = 256 * MIB
ALLOWANCE = 300 * MIB
BESIDE_BODIES = 64 * MIB  # what serving so many takes beside bodies: 18 MiB here, more where there are more threads

pytestmark = pytest.mark.needs_daemon


def resident_bytes(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key == field:
                return int(value.split()[0]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no {field}")


def check_peak(mount, memory):
    """What the daemon had resident at most. Not under a sanitizer: its shadow memory would be judged."""
    if kvc_env.has_sanitizer():
        return
    peak = resident_bytes(mount.pid, "VmHWM")
    assert peak <= memory + ALLOWANCE, f"peak RSS {peak / MIB:.0f} MiB"


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
    check_peak(mount, MEMORY)
    mount.remount()
    in_processes([(check, mount, 16, 8 * MIB, process) for process in range(2)])


def test_a_limit_that_is_lowered_is_kept_though_nobody_asks_for_memory(new_mount):
    mount = new_mount({"memory": "256M", "memory_file_min": "0"})
    for index in range(96):
        with open(os.path.join(mount.path, f"chunk{index}"), "wb", buffering=0) as file:
            file.write(payload(f"chunk{index}", MIB))
    mount.drain()
    assert mount.status()["memory"]["used_bytes"] > 90 * MIB
    resident = resident_bytes(mount.pid, "VmRSS")
    os.setxattr(mount.path, "user.kvcachefs.option.memory", b"16M")
    wait_until(lambda: mount.status()["memory"]["used_bytes"] <= 16 * MIB, SOON, "what is over the limit is given back")
    if not kvc_env.has_sanitizer():
        wait_until(lambda: resident_bytes(mount.pid, "VmRSS") < resident - 32 * MIB, SOON, "and the system has it")
    with open(os.path.join(mount.path, "chunk0"), "rb", buffering=0) as file:
        assert_bytes(file.read(2 * MIB), payload("chunk0", MIB), "chunk0")


def test_attributes_of_files_that_are_not_open_do_not_stay_in_ram(new_mount):
    """Beside bodies that do: 480 MiB of attributes."""
    mount = new_mount({"memory": "64M"})
    value, count = payload("attribute", 60_000), 2000
    before = resident_bytes(mount.pid, "RssAnon")
    most = before
    for index in range(count):
        path = os.path.join(mount.path, f"{index:032x}")
        with open(path, "wb") as file:
            file.write(payload(f"chunk{index}", 5000))
        for part in range(4):
            os.setxattr(path, f"user.part{part}", value)
        most = max(most, resident_bytes(mount.pid, "RssAnon"))
    if not kvc_env.has_sanitizer():
        assert most - before < 360 * MIB  # those that no record has yet are 64 MiB of it
    for index in range(0, count, 97):
        path = os.path.join(mount.path, f"{index:032x}")
        assert all(os.getxattr(path, f"user.part{part}") == value for part in range(4))
        with open(path, "rb") as file:
            assert_bytes(file.read(), payload(f"chunk{index}", 5000), path)


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
    check_peak(mount, 64 * MIB)
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


READERS, BUSY_WRITERS, STORED = 64, 16, 48
SIZES = (64 * kvc_env.KIB, 300_001, MIB, 3 * MIB + 5, 9 * MIB)


def size_of(index):
    return SIZES[index % len(SIZES)]


class Workers:
    """Threads that work until they are told to stop, and what went wrong in them."""

    def __init__(self):
        self.stop = threading.Event()
        self.failures = []
        self.rounds = 0
        self._lock = threading.Lock()

    def run(self, works, seconds, sample, is_enough):
        """For so long, and until `is_enough`: on a machine that does much else some get their turn late."""

        def work(one):
            try:
                while not self.stop.is_set():
                    one()
                    with self._lock:
                        self.rounds += 1
            except BaseException as error:
                self.failures.append(error)
                self.stop.set()

        threads = [threading.Thread(target=work, args=(each,)) for each in works]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        while time.monotonic() < begun + (seconds if is_enough() else seconds + 2 * SOON * kvc_env.SCALE) and not self.stop.wait(0.05):
            sample()
        self.stop.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]


@pytest.mark.deadline(600)
@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_memory_under_64_readers_and_16_writers(new_mount, passthrough):
    """Bodies of 64 KiB to 9 MiB: twice the memory is read again and again, and more is replaced all the while."""
    memory = 64 * MIB
    mount = new_mount({"memory": "64M", "passthrough": passthrough})
    expected = {}
    for index in range(STORED):
        expected[index] = payload(f"stored/{index}", size_of(index))
        with open(os.path.join(mount.path, f"stored-{index}"), "wb") as file:
            file.write(expected[index])
    bodies = [payload(f"busy/{writer}", size_of(writer)) for writer in range(BUSY_WRITERS)]
    mount.remount()  # nothing of it is in RAM

    choose = random.Random(kvc_env.seed())
    orders = [choose.sample(range(STORED), STORED) for _ in range(READERS)]
    versions = [0] * BUSY_WRITERS

    def reader(order):
        index = order.pop(0)
        order.append(index)
        with open(os.path.join(mount.path, f"stored-{index}"), "rb", buffering=0) as file:
            got = file.read(size_of(index) + 1)
        assert_bytes(got, expected[index], f"stored-{index}")

    def writer(number):
        name = os.path.join(mount.path, f"busy-{number}")
        with open(f"{name}.tmp", "wb", buffering=0) as file:
            assert file.write(versions[number].to_bytes(8, "little") + bodies[number]) == 8 + len(bodies[number])
        os.rename(f"{name}.tmp", name)
        versions[number] += 1

    idle = resident_bytes(mount.pid, "VmRSS")
    most = {"resident": 0, "used": 0}

    def sample():
        most["resident"] = max(most["resident"], resident_bytes(mount.pid, "VmRSS"))
        most["used"] = max(most["used"], mount.status()["memory"]["used_bytes"])

    workers = Workers()
    works = [functools.partial(reader, order) for order in orders]
    works += [functools.partial(writer, number) for number in range(BUSY_WRITERS)]

    def had_turns():
        return all(versions) and workers.rounds > READERS + BUSY_WRITERS

    workers.run(works, (3 if kvc_env.QUICK else 6) * kvc_env.SCALE, sample, had_turns)
    assert had_turns(), f"{workers.rounds} rounds, versions {versions}: a worker never got a turn"
    assert most["used"] <= memory, f"{most['used'] / MIB:.1f} MiB of bodies in RAM"
    if not kvc_env.has_sanitizer():
        bound = idle + memory + BESIDE_BODIES
        assert 0 < most["resident"] <= bound, f"sampled RSS {most['resident'] / MIB:.0f} MiB, {idle / MIB:.0f} MiB before"
        assert resident_bytes(mount.pid, "VmHWM") <= bound, f"peak RSS {resident_bytes(mount.pid, 'VmHWM') / MIB:.0f} MiB"
    for number in range(BUSY_WRITERS):
        with open(os.path.join(mount.path, f"busy-{number}"), "rb") as file:
            assert_bytes(file.read(), (versions[number] - 1).to_bytes(8, "little") + bodies[number], f"busy-{number}")


@pytest.mark.parametrize("access", ["threads", "aio"])
def test_readers_of_parts_that_lie_in_ram_do_not_wait_for_each_other(new_mount, access):
    """At the least `memory` that there is: 64 requests of 1 MiB at a time, at odd places of chunks that lie in packs."""
    mount = new_mount({"memory": "16M"})
    size, length, files = 3 * MIB + 512 * 1024, MIB, 16
    bodies = [payload(f"odd/{index}", size) for index in range(files)]
    for index, body in enumerate(bodies):
        with open(os.path.join(mount.path, f"odd-{index}"), "wb") as file:
            file.write(body)
    os.setxattr(mount.path, "user.kvcachefs.flush", b"1")
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    chance = random.Random(7)
    places = [(chance.randrange(files), chance.randrange((size - length) // 4096) * 4096) for _ in range(640)]
    fds = [os.open(os.path.join(mount.path, f"odd-{index}"), os.O_RDONLY | os.O_DIRECT) for index in range(files)]

    def read_all(batch):
        for index, offset in batch:
            assert_bytes(os.pread(plain[index], length, offset), bodies[index][offset : offset + length], f"odd-{index} at {offset}")

    if access == "threads":
        plain = [os.open(os.path.join(mount.path, f"odd-{index}"), os.O_RDONLY) for index in range(files)]
        run_threads([functools.partial(read_all, places[start::64]) for start in range(64)])
        for fd in plain:
            os.close(fd)
    else:
        for start in range(0, len(places), 64):
            buffers = [aligned(bytes(length)) for _ in range(64)]
            batch = places[start : start + 64]
            requests = [(fds[index], buffer, offset) for (index, offset), buffer in zip(batch, buffers, strict=True)]
            require_whole(Native.get().aio(requests, write=False), requests)
            for (index, offset), buffer in zip(batch, buffers, strict=True):
                assert_bytes(bytes(buffer), bodies[index][offset : offset + length], f"odd-{index} at {offset}")
    for fd in fds:
        os.close(fd)
    check_peak(mount, 16 * MIB)


def run_threads(works):
    failures = []

    def run(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def sampled_peak(mount, work):
    """Runs `work`; the most that the daemon had resident at any sample, and what it has some seconds later."""
    peak, stop = [0], threading.Event()

    def sample():
        while not stop.wait(0.1):
            peak[0] = max(peak[0], resident_bytes(mount.pid, "VmRSS"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        stop.set()
        sampler.join()
    return peak[0]


@pytest.mark.parametrize("kind", ["packed", "raw"])
def test_many_writers_that_wait_at_once(new_mount, kind):
    """The bytes of writes that wait lie outside `memory`, and have a bound of their own; what they took comes back."""
    count, rounds = 400, 3
    mount = new_mount({"memory": "16M", **({"raw_above": "1M"} if kind == "raw" else {})})
    body = payload("waiting", MIB + 400 * 4096)
    pool = os.open(os.path.join(mount.path, "pool"), os.O_RDWR | os.O_CREAT, 0o644)
    if kind == "raw":
        os.ftruncate(pool, count * MIB)

    def write(number):
        if kind == "raw":
            for _ in range(rounds):
                assert os.pwrite(pool, body[number * 4096 :][:MIB], number * MIB) == MIB
            return
        with open(os.path.join(mount.path, f"w{number}"), "wb", buffering=0) as file:
            for _ in range(rounds):
                assert file.write(body[number * 4096 :][:MIB]) == MIB

    before = threading.stack_size(256 * 1024)
    try:
        peak = sampled_peak(mount, lambda: run_threads([functools.partial(write, number) for number in range(count)]))
    finally:
        threading.stack_size(before)
    if not kvc_env.has_sanitizer():
        assert peak <= 16 * MIB + ALLOWANCE, f"{peak / MIB:.0f} MiB"
        wait_until(lambda: resident_bytes(mount.pid, "VmRSS") <= 16 * MIB + 100 * MIB, SOON, "what waited is given back")
    for number in range(0, count, 37):
        if kind == "raw":
            assert_bytes(os.pread(pool, MIB, number * MIB), body[number * 4096 :][:MIB], f"pool at {number}")
        else:
            with open(os.path.join(mount.path, f"w{number}"), "rb") as file:
                assert_bytes(file.read(), body[number * 4096 :][:MIB] * rounds, f"w{number}")
    os.close(pool)


@pytest.mark.skipif(kvc_env.has_sanitizer(), reason="its allocator ends the process")
def test_no_memory_for_a_request_is_its_error_alone(new_mount):
    mount = new_mount({"raw_above": "4M", "memory": "64M"})
    path = os.path.join(mount.path, "pool")
    with open(path, "wb") as file:
        file.truncate(64 * MIB)  # a raw file: what is read of it is copied through memory that the request asks for
    mount.drain()
    read = os.open(path, os.O_RDONLY)
    before = resource.prlimit(mount.pid, resource.RLIMIT_DATA)
    errors = []
    try:
        resource.prlimit(mount.pid, resource.RLIMIT_DATA, (1, before[1]))
        for index in range(4):
            try:
                os.pread(read, MIB, index * MIB)
            except OSError as error:
                errors.append(error.errno)
    finally:
        if mount.alive():
            resource.prlimit(mount.pid, resource.RLIMIT_DATA, before)
    assert mount.alive(), mount.log_text()[-2000:]
    assert errors and set(errors) == {errno.ENOMEM}, errors
    assert os.pread(read, MIB, 0) == bytes(MIB)
    os.close(read)


@pytest.mark.skipif(kvc_env.has_sanitizer(), reason="its allocator ends the process")
def test_no_memory_for_a_copy_is_its_error_alone(new_mount):
    """What is read from the volume is copied once the volume has answered."""
    mount = new_mount({"memory": "64M", "pack_below": "64M"})
    source, target = os.path.join(mount.path, "source"), os.path.join(mount.path, "target")
    body = os.urandom(16 * MIB)
    with open(source, "wb") as file:
        file.write(body)
    mount.drain()
    read, write = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT)
    before = resource.prlimit(mount.pid, resource.RLIMIT_DATA)
    errors = []
    try:
        for offset in range(0, len(body), 4 * MIB):
            os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
            resource.prlimit(mount.pid, resource.RLIMIT_DATA, (1, before[1]))
            try:
                os.copy_file_range(read, write, MIB, offset, offset)
            except OSError as error:
                errors.append(error.errno)
            resource.prlimit(mount.pid, resource.RLIMIT_DATA, before)
    finally:
        if mount.alive():
            resource.prlimit(mount.pid, resource.RLIMIT_DATA, before)
    assert mount.alive(), mount.log_text()[-2000:]
    assert errors and set(errors) == {errno.ENOMEM}, errors
    copied = 0
    while copied < len(body):
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        copied += os.copy_file_range(read, write, len(body) - copied, copied, copied)
    assert_bytes(os.pread(write, len(body), 0), body, "the copy")
    os.close(read)
    os.close(write)
