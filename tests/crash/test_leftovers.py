"""What died just before the daemon did comes back: the blocks on the volume are those that a daemon needs which was never killed."""

import contextlib
import os
import signal

import pytest

from kvc_mount import SOON, run_command, wait_until

pytestmark = pytest.mark.needs_daemon

OPTIONS = {"memory": "64M", "extent_size": "16M", "pack_below": "1M"}
FILES, FILE_BYTES = 90, 100_000  # 9 MB, one pack
TOLERANCE_BYTES = 20 * 1024  # less of a pack is not looked for: the file system may need it to map the file


def content(number):
    return bytes([number % 251]) * FILE_BYTES


def survivors():
    return [number for number in range(FILES) if number % 3 == 0]


def extent_bytes(volume):
    total = 0
    for root, _, files in os.walk(os.path.join(volume, "nodes")):
        if "/extents/" in root:
            total += sum(os.stat(os.path.join(root, name)).st_blocks * 512 for name in files)
    return total


def fill(mount):
    for number in range(FILES):
        with open(os.path.join(mount.path, f"c{number}"), "wb") as file:
            file.write(content(number))
    mount.drain()


def remove_most(mount):
    for number in set(range(FILES)) - set(survivors()):
        os.unlink(os.path.join(mount.path, f"c{number}"))
    mount.drain()


def died(mount):
    if mount.process.poll() is None:
        return False
    assert mount.process.returncode == -signal.SIGKILL, mount.log_text()[-4000:]
    return True


def start_to_die(mount, monkeypatch, point):
    monkeypatch.setenv("KVCACHEFS_KILL_POINT", point)
    mount.start()
    monkeypatch.delenv("KVCACHEFS_KILL_POINT")


@pytest.fixture
def needed_bytes(new_mount):
    """Of the same files in a volume whose daemon was never killed."""
    mount = new_mount(OPTIONS)
    fill(mount)
    full = extent_bytes(mount.volume)
    remove_most(mount)
    wait_until(lambda: extent_bytes(mount.volume) < full / 2, SOON, "what was removed is given back")
    mount.stop()
    return extent_bytes(mount.volume)


def dead_before_reclaim(new_mount, monkeypatch):
    mount = new_mount(OPTIONS, start=False)
    start_to_die(mount, monkeypatch, "reclaim-begun")
    fill(mount)
    remove_most(mount)
    wait_until(lambda: died(mount), SOON, "the index is committed, and nothing given back")
    mount.kill()
    return mount


# The second: the daemon that gives it back is killed in the middle of that.
@pytest.mark.parametrize("second", [None, "leftover-punched:5"])
def test_what_died_before_the_daemon_comes_back(new_mount, monkeypatch, needed_bytes, second):
    mount = dead_before_reclaim(new_mount, monkeypatch)
    dead = extent_bytes(mount.volume)
    assert dead > 2 * needed_bytes
    if second:
        start_to_die(mount, monkeypatch, second)
        wait_until(lambda: died(mount), SOON, "some ranges are punched")
        mount.kill()
        assert needed_bytes + TOLERANCE_BYTES < extent_bytes(mount.volume) < dead
    mount.start()
    wait_until(lambda: extent_bytes(mount.volume) <= needed_bytes + TOLERANCE_BYTES, SOON, "what had died is given back")
    for number in survivors():
        with open(os.path.join(mount.path, f"c{number}"), "rb") as file:
            assert file.read() == content(number)
    assert sorted(os.listdir(mount.path)) == sorted(f"c{number}" for number in survivors())
    mount.stop()
    assert needed_bytes - TOLERANCE_BYTES <= extent_bytes(mount.volume) <= needed_bytes + TOLERANCE_BYTES
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0 and ", 0 in dead ranges" in fsck.stdout, fsck.stdout + fsck.stderr


def test_fsck_counts_dead_ranges_and_gives_them_back(new_mount, monkeypatch, needed_bytes):
    mount = dead_before_reclaim(new_mount, monkeypatch)
    dead = extent_bytes(mount.volume)
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0 and "in dead ranges" in fsck.stdout and ", 0 in dead ranges" not in fsck.stdout, fsck.stdout
    assert extent_bytes(mount.volume) == dead
    fsck = run_command("fsck", "--repair", mount.volume)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    assert " given back" in fsck.stdout, fsck.stdout
    assert extent_bytes(mount.volume) <= needed_bytes + TOLERANCE_BYTES
    mount.start()
    for number in survivors():
        with open(os.path.join(mount.path, f"c{number}"), "rb") as file:
            assert file.read() == content(number)


def test_a_spilled_file_without_a_name_goes_with_the_daemon(new_mount):
    """Somebody has it open when the daemon is told to end: nobody can ever read it again."""
    mount = new_mount({"memory": "16M", "durability": "close"})
    path = os.path.join(mount.path, "big")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for _ in range(48):
            os.write(descriptor, b"s" * 1048576)
        assert extent_bytes(mount.volume) > 16 * 1048576
        os.unlink(path)
        mount.terminate()
    finally:
        with contextlib.suppress(OSError):  # the daemon is gone
            os.close(descriptor)
    assert extent_bytes(mount.volume) == 0
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
