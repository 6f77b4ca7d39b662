"""A write that is to be synced is on the volume when it is answered: the daemon gets kill -9 behind it, and nothing else is called."""

import contextlib
import mmap
import os

import pytest

from kvc_env import KIB, MIB

pytestmark = pytest.mark.needs_daemon

OLD = b"o" * 300_000
NEW = b"n" * 8192
# What is accepted goes to the volume much later, unless somebody asks for it.
OPTIONS = {"memory": "64M", "flush_interval_ms": "60000"}


def aligned(data):
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return memory


def write(fd):
    os.pwrite(fd, aligned(NEW), 4096)


def write_flagged(flag):
    return lambda fd: os.pwritev(fd, [aligned(NEW)], 4096, flag)


def copy(fd):
    source = os.open(os.path.join(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")), "source"), os.O_RDONLY)
    assert os.copy_file_range(source, fd, len(NEW), 0, 4096) == len(NEW)
    os.close(source)


CASES = {
    "O_SYNC": (os.O_SYNC, write),
    "O_DSYNC": (os.O_DSYNC, write),
    "O_DIRECT": (os.O_DSYNC | os.O_DIRECT, write),
    "RWF_SYNC": (0, write_flagged(os.RWF_SYNC)),
    "RWF_DSYNC": (0, write_flagged(os.RWF_DSYNC)),
    "copy": (os.O_SYNC, copy),
}


def expect(mount, name, data):
    with open(os.path.join(mount.path, name), "rb") as file:
        assert file.read() == data, name


def killed(mount, change):
    """What `change` leaves behind kill -9."""
    fds = change()
    mount.kill()
    mount.start()
    for fd in fds:
        with contextlib.suppress(OSError):  # ENOTCONN: its mount is gone
            os.close(fd)


@pytest.fixture
def prepared(new_mount):
    def make(**options):
        mount = new_mount({**OPTIONS, **options})
        for name in ("patched", "source"):
            with open(os.path.join(mount.path, name), "wb") as file:
                file.write(OLD if name == "patched" else NEW * 40)
        mount.drain()
        return mount

    return make


@pytest.mark.parametrize("case", CASES)
def test_a_synced_write_outlives_the_daemon(prepared, case):
    flags, change = CASES[case]
    mount = prepared()

    def run():
        fds = [os.open(os.path.join(mount.path, name), os.O_RDWR | os.O_CREAT | flags, 0o644) for name in ("patched", "new")]
        for fd in fds:
            change(fd)
        return fds

    killed(mount, run)
    expect(mount, "patched", OLD[:4096] + NEW + OLD[4096 + len(NEW) :])
    expect(mount, "new", bytes(4096) + NEW)


def test_what_is_not_to_be_synced_stays_in_ram(prepared):
    """Or the tests here would tell nothing."""
    mount = prepared()

    def run():
        fd = os.open(os.path.join(mount.path, "new"), os.O_RDWR | os.O_CREAT, 0o644)
        write(fd)
        return [fd]

    killed(mount, run)
    assert not os.path.exists(os.path.join(mount.path, "new"))


def test_each_write_of_a_mount_with_sync(prepared):
    mount = prepared(sync=None)

    def run():
        fds = [os.open(os.path.join(mount.path, name), os.O_RDWR | os.O_CREAT, 0o644) for name in ("patched", "new")]
        write(fds[0])
        copy(fds[1])
        return fds

    killed(mount, run)
    expect(mount, "patched", OLD[:4096] + NEW + OLD[4096 + len(NEW) :])
    expect(mount, "new", bytes(4096) + NEW)


def test_a_raw_file_that_grows(prepared):
    mount = prepared(raw_above="1M")

    def run():
        fd = os.open(os.path.join(mount.path, "raw"), os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o644)
        os.ftruncate(fd, 2 * MIB)
        os.pwrite(fd, NEW, 3 * MIB)
        return [fd]

    killed(mount, run)
    expect(mount, "raw", bytes(3 * MIB) + NEW)


def test_large_writes_and_what_follows_them(prepared):
    """A request of the kernel each MiB: what one syncs is there before the next."""
    mount = prepared()
    data = os.urandom(256 * KIB) * 13

    def run():
        fd = os.open(os.path.join(mount.path, "large"), os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
        assert os.write(fd, data) == len(data)
        assert os.write(fd, b"tail") == 4
        return [fd]

    killed(mount, run)
    expect(mount, "large", data + b"tail")
