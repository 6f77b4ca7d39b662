"""What is read ahead of clients, and what .kvcachefs/chains tells of it."""

import concurrent.futures
import os
import random
import threading
import time

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import wait_until
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
    mount.remount()  # neither the daemon nor the kernel has anything of it

    def probe():
        assert all(gds_has(path) for path in paths)

    # On a busy machine four readers overtake what reads ahead of them, and what they read themselves it never will. So each opens
    # its body after those before it were opened, and once something is ready.
    turn = threading.Condition()
    opened = 0

    def load(index):
        nonlocal opened
        with turn:
            assert turn.wait_for(lambda: opened == index, 60), f"body {index - 1} was not opened"
            until = time.monotonic() + 2  # no longer: what a run that ended had made ready is not told
            while ready_bytes(mount) == 0 and time.monotonic() < until:
                time.sleep(0.01)
            file = open(paths[index], "rb", buffering=0)
            opened += 1
            turn.notify_all()
        with file:
            assert_bytes(file.read(size + HEADER + 1), bodies[index], paths[index])

    probe()
    wait_until(lambda: mount.status()["prefetch"]["read_bytes"] >= 2 * size, 60, "bodies are read before any is opened")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(load, range(CHUNKS)))
    status = mount.status()
    assert status["prefetch"]["used_bytes"] > 0.9 * CHUNKS * size, status["prefetch"]
    assert status["prefetch"]["wasted_bytes"] == 0, status["prefetch"]
    assert status["reads"]["bytes_from_volume"] <= 1.1 * CHUNKS * (size + 2 * HEADER), "something was read twice"


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
    with open(os.path.join(mount.path, names[0]), "rb", buffering=0) as file:
        file.read(MIB)

        def following():
            runs = [fields for line, fields in chains(mount) if line == "run"]
            return runs if runs and int(runs[0]["ready_bytes"]) > 0 else None

        (run,) = wait_until(following, 1.5, "something is ready")
    assert run["by"] == "successor" and run["readers"] == "1"
    inode = os.stat(os.path.join(mount.path, names[1])).st_ino
    assert int(run["next"]) == inode
    assert 0 < int(run["ready_bytes"]) + int(run["in_flight_bytes"]) <= int(run["planned_bytes"]) <= 40 * MIB
    assert int(run["window_bytes"]) >= 2 * MIB and int(run["expected"]) >= 2
    known = dict(chains(mount))["known"]
    assert int(known["rows"]) >= 2 and int(known["streams"]) >= 1
    assert float(dict(chains(mount))["volume"]["bandwidth_bytes_per_s"]) > 0
