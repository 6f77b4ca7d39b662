"""What is read ahead of clients, and what .kvcachefs/chains tells of it."""

import concurrent.futures
import os
import random
import threading
import time

import pytest

import kvc_env
from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON
from kvc_process import in_process

pytestmark = pytest.mark.needs_daemon

HEADER = 4096
CHUNKS = 24


def gds_path(root, index):
    """As LMCache's GDS backend names a chunk."""
    name = f"{index * 0x9E3779B97F4A7C15 % 2**128:032x}"
    return os.path.join(root, name[-2:], name[-4:-2], f"model@1@0@{name}@bfloat16.kvcache.safetensors")


def gds_has(path):
    """Its lookup: the sidecar, never the body."""
    sidecar = f"{path}.metadata"
    if not os.path.exists(sidecar):
        return False
    fd = os.open(sidecar, os.O_RDONLY | os.O_NOATIME)
    try:
        return len(os.read(fd, HEADER)) == HEADER
    finally:
        os.close(fd)


def gds_put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp{random.getrandbits(32):08x}"
    with open(temporary, "wb", buffering=0) as file:
        file.write(content[:HEADER])
    with open(temporary, "r+b", buffering=0) as file:
        file.seek(HEADER)
        file.write(content[HEADER:])
    os.rename(temporary, path)
    temporary = f"{path}.metadata.tmp{random.getrandbits(32):08x}"
    with open(temporary, "wb", buffering=0) as file:
        file.write(content[:HEADER])
    os.rename(temporary, f"{path}.metadata")


def chains(mount):
    with open(os.path.join(mount.path, ".kvcachefs", "chains"), encoding="ascii") as file:
        lines = [line.split() for line in file]
    return [(words[0], dict(word.split("=") for word in words[1:])) for words in lines]


def ready_bytes(mount):
    """Read ahead, and not opened yet."""
    return sum(int(fields["ready_bytes"]) for line, fields in chains(mount) if line == "run")


@pytest.mark.deadline(900)
@pytest.mark.parametrize("size", [512 * 1024, 3 * MIB])
def test_gds_probes_of_sidecars_read_the_bodies_ahead(new_mount, size):
    mount = new_mount({"memory": "512M"})
    paths = [gds_path(mount.path, index) for index in range(CHUNKS)]
    bodies = [payload(f"gds/{index}", size + HEADER) for index in range(CHUNKS)]

    def store():
        assert not any(gds_has(path) for path in paths)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(gds_put, paths, bodies))

    in_process(store)

    def probe():
        assert all(gds_has(path) for path in paths)

    def restore():
        """What the status tells of it afterwards; None if bodies were not read before any was opened."""
        # On a busy machine four readers overtake what reads ahead of them, and what they read themselves it never will. So each opens
        # its body after those before it were opened, and once something is ready.
        turn = threading.Condition()
        opened = 0

        def load(index):
            nonlocal opened
            with turn:
                assert turn.wait_for(lambda: opened == index, SOON * kvc_env.SCALE), f"body {index - 1} was not opened"
                until = time.monotonic() + 2  # no longer: what a run that ended had made ready is not told
                while ready_bytes(mount) == 0 and time.monotonic() < until:
                    time.sleep(0.01)
                file = open(paths[index], "rb", buffering=0)
                opened += 1
                turn.notify_all()
            with file:
                assert_bytes(file.read(size + HEADER + 1), bodies[index], paths[index])

        mount.remount()  # neither the daemon nor the kernel has anything of it
        probe()
        until = time.monotonic() + 10 * kvc_env.SCALE
        while mount.status()["prefetch"]["read_bytes"] < 2 * size:
            if time.monotonic() > until:
                return None
            time.sleep(0.01)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(load, range(CHUNKS)))
        return mount.status()

    def is_read_ahead(status):
        ahead = status["prefetch"]
        read_once = status["reads"]["bytes_from_volume"] <= 1.1 * CHUNKS * (size + 2 * HEADER)
        return ahead["used_bytes"] > 0.9 * CHUNKS * size and ahead["wasted_bytes"] == 0 and read_once

    # Any one of several: what its reader pauses at is rightly left out, and a machine that does much else makes pauses.
    restored = []
    while len(restored) < 10 and not (restored and restored[-1] and is_read_ahead(restored[-1])):
        restored.append(restore())
    assert restored[-1] and is_read_ahead(restored[-1]), [each and (each["prefetch"], each["reads"]) for each in restored]


def test_chains_tell_what_is_read_ahead(new_mount):
    mount = new_mount({"memory": "512M"})
    names = [f"{index:032x}.kv" for index in range(0x12345678, 0x12345678 + 40)]
    for name in names:
        with open(os.path.join(mount.path, f"{name}.tmp"), "wb", buffering=0) as file:
            file.write(payload(name, MIB))
        os.rename(os.path.join(mount.path, f"{name}.tmp"), os.path.join(mount.path, name))

    mount.remount()
    assert [line for line, _ in chains(mount)] == ["volume", "known", "runs"]
    assert dict(chains(mount))["runs"] == {"live": "0", "shown": "0"}

    def following():
        """A run is told as long as it lasts: two seconds."""
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            runs = [fields for line, fields in chains(mount) if line == "run"]
            if runs and int(runs[0]["ready_bytes"]) > 0:
                return runs
            time.sleep(0.01)
        return None

    runs = None
    for _ in range(10):  # as often as the machine is too slow for it
        with open(os.path.join(mount.path, names[0]), "rb", buffering=0) as file:
            file.read(MIB)
            runs = following()
        if runs:
            break
        mount.remount()
    assert runs, "nothing was read ahead"
    (run,) = runs
    assert run["by"] == "successor" and run["readers"] == "1"
    inode = os.stat(os.path.join(mount.path, names[1])).st_ino
    assert int(run["next"]) == inode
    assert 0 < int(run["ready_bytes"]) + int(run["in_flight_bytes"]) <= int(run["planned_bytes"]) <= 40 * MIB
    assert int(run["window_bytes"]) >= 2 * MIB and int(run["expected"]) >= 2
    known = dict(chains(mount))["known"]
    assert int(known["rows"]) >= 2 and int(known["streams"]) >= 1
    assert float(dict(chains(mount))["volume"]["bandwidth_bytes_per_s"]) > 0
