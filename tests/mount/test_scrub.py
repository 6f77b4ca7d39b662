"""Chunks are verified in idle time, or when that is asked for: what rotted on the medium is absent before a reader meets it."""

import errno
import os

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until

pytestmark = pytest.mark.needs_daemon
SIZES = {"packed": 300 * KIB, "solo": 6 * MIB}


def scrub(mount):
    passes = mount.status()["scrub"]["passes"]
    os.setxattr(mount.path, "user.kvcachefs.scrub", b"1")
    wait_until(lambda: mount.status()["scrub"]["passes"] > passes, SOON, "the pass ends")
    return mount.status()["scrub"]


def rot(mount, name):
    """Flips a byte of the body, as the medium would."""
    place = os.getxattr(os.path.join(mount.path, name), "user.kvcachefs.place").decode()
    path, _, span = place.rpartition(":")
    with open(os.path.join(mount.volume, path), "r+b") as file:
        file.seek(int(span.partition("+")[0]) + 100_000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
        os.fsync(file.fileno())


@pytest.fixture
def stored(new_mount):
    mount = new_mount({})
    for kind, size in SIZES.items():
        for index in range(4):
            with open(os.path.join(mount.path, f"{kind}{index}"), "wb") as file:
                file.write(payload(f"{kind}{index}", size))
    mount.drain()
    return mount


def test_what_rotted_is_absent_and_the_rest_is_whole(stored):
    found = scrub(stored)
    assert (found["bodies"], found["damaged"], found["unreadable"]) == (8, 0, 0)
    assert found["bytes"] == 4 * sum(SIZES.values())
    rot(stored, "packed2")
    rot(stored, "solo1")
    found = scrub(stored)
    assert found["damaged"] == 2 and not found["running"]
    os.setxattr(stored.path, "user.kvcachefs.drop_caches", b"1")
    for kind, size in SIZES.items():
        for index in range(4):
            path = os.path.join(stored.path, f"{kind}{index}")
            if f"{kind}{index}" in ("packed2", "solo1"):
                with pytest.raises(FileNotFoundError):
                    os.stat(path)
                continue
            with open(path, "rb") as file:
                assert_bytes(file.read(), payload(f"{kind}{index}", size), path)
    assert stored.status()["objects"]["quarantined"] == 2
    ended = stored.status()["scrub"]["last_pass_s"]
    assert "scrub" in run_command("status", stored.path).stdout
    stored.remount()
    assert stored.status()["scrub"]["last_pass_s"] == ended, "kept over the restart"
    assert stored.status()["objects"]["quarantined"] == 2
    with open(os.path.join(stored.path, "solo1"), "wb") as file:  # stored anew
        file.write(payload("solo1", SIZES["solo"]))
    stored.drain()
    assert scrub(stored)["damaged"] == 0


@pytest.mark.needs_root
def test_only_who_may_change_the_mount_begins_one(new_mount):
    mount = new_mount({"allow_other": True})
    os.chmod(mount.path, 0o777)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            os.setxattr(mount.path, "user.kvcachefs.scrub", b"1")
        except OSError as error:
            code = 0 if error.errno == errno.EPERM else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mount.status()["scrub"]["passes"] == 0


def test_a_read_only_mount_says_why_it_does_not(stored):
    stored.remount(ro=True)
    with pytest.raises(OSError) as refused:
        os.setxattr(stored.path, "user.kvcachefs.scrub", b"1")
    assert refused.value.errno == errno.EROFS
