"""What the backing file system has no room for: bytes past `capacity`, inodes, what records of names and attributes take."""

import contextlib
import errno
import mmap
import os
import shutil
import subprocess
import time

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, run_command, wait_until
from kvc_volume import Sampler, bytes_at_once

pytestmark = pytest.mark.needs_daemon


@contextlib.contextmanager
def disk(temp_dir, size, *mkfs):
    if os.geteuid() != 0 or shutil.which(mkfs[0]) is None or not os.path.exists("/dev/loop-control"):
        pytest.skip(f"needs root, {mkfs[0]} and loop devices")
    image, where = os.path.join(temp_dir, "disk.img"), os.path.join(temp_dir, "disk")
    os.mkdir(where)
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([*mkfs, image], check=True, capture_output=True)
    loop = subprocess.run(["losetup", "-f", "--show", image], check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", loop, where], check=True)
        try:
            yield where, image, loop
        finally:
            subprocess.run(["umount", "-l", where], check=False)
    finally:
        subprocess.run(["losetup", "-d", loop], check=False)


class Watch(Sampler):
    """The most that the volume and the daemon's memory came to."""

    def __init__(self, mount, volume):
        super().__init__(0.1)
        self.mount, self.volume = mount, volume
        self.most_bytes = self.most_rss = 0

    def look(self):
        self.most_bytes = max(self.most_bytes, bytes_at_once(self.volume))
        with contextlib.suppress(OSError), open(f"/proc/{self.mount.pid}/status", encoding="ascii") as status:
            self.most_rss = max([self.most_rss] + [int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS")])

    def __exit__(self, *unused):
        super().__exit__(*unused)
        self.look()


def join(mount, name):
    return os.path.join(mount.path, name)


def until_full(step, most):
    for number in range(most):
        try:
            step(number)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return number
    return most


def test_raw_files_keep_to_the_capacity(new_mount, temp_dir):
    mount = new_mount({"memory": "32M", "capacity": "128M", "raw_above": "1M", "evict": "off"})
    block = os.urandom(MIB)
    files = [os.open(join(mount, f"pool{i}"), os.O_RDWR | os.O_CREAT) for i in range(4)]
    with Watch(mount, mount.volume) as watch:
        for file in files:
            os.ftruncate(file, 100 * MIB)
        written = until_full(lambda i: os.pwrite(files[i % 4], block, i // 4 * MIB), 400)
        for number in range(0, 32):  # what is there can be written anew
            os.pwrite(files[number % 4], block, number // 4 * MIB)
    assert 96 <= written < 128
    assert watch.most_bytes <= 128 * MIB
    for number, file in enumerate(files):  # as on ext4: the call was told, and the file is as it was
        os.fsync(file)
        os.close(file)
        os.rename(join(mount, f"pool{number}"), join(mount, f"kept{number}"))


def test_bytes_of_a_mapping_that_a_raw_file_had_no_room_for_are_missed(new_mount):
    mount = new_mount({"memory": "32M", "capacity": "32M", "raw_above": "16M", "evict": "off"})
    file, other = os.open(join(mount, "pool"), os.O_RDWR | os.O_CREAT), os.open(join(mount, "other"), os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 28 * MIB)
    os.ftruncate(other, 28 * MIB)
    until_full(lambda i: os.pwrite(other, bytes(MIB), i * MIB), 28)
    with mmap.mmap(file, 28 * MIB) as mapping:
        for page in range(8 * MIB, 16 * MIB, 4096):
            mapping[page : page + 4] = b"page"
        with pytest.raises(OSError):
            mapping.flush()
    for call in (lambda: os.fsync(file), lambda: os.fsync(file), lambda: os.rename(join(mount, "pool"), join(mount, "pool2"))):
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno == errno.ENOSPC
    os.ftruncate(other, 0)
    for at in range(8 * MIB, 16 * MIB, MIB):
        os.pwrite(file, b"x" * MIB, at)
    os.fsync(file)
    os.rename(join(mount, "pool"), join(mount, "pool2"))
    os.close(file)
    os.close(other)


@pytest.mark.parametrize("what", ["xattrs", "open", "symlinks", "rewritten", "renamed", "directories"])
def test_records_keep_to_the_capacity(new_mount, what):
    mount = new_mount({"memory": "16M", "capacity": "64M", "evict": "off"})
    value, opened = os.urandom(60_000), []

    def xattrs(number):
        path = join(mount, f"x{number}")
        os.mknod(path, 0o644)
        for key in range(4):
            os.setxattr(path, f"user.a{key}", value)

    def still_open(number):  # no record is made of them before they are closed
        path = join(mount, f"o{number}")
        opened.append(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.write(opened[-1], b"chunk")
        for key in range(4):
            os.setxattr(path, f"user.a{key}", value)

    def symlinks(number):
        os.symlink("t" * 4000, join(mount, f"l{number}"))

    def rewritten(number):
        if number == 0:
            os.mknod(join(mount, "one"), 0o644)
        os.setxattr(join(mount, "one"), "user.a", os.urandom(60_000))

    def renamed(number):
        if number == 0:
            os.mknod(join(mount, "0" * 200), 0o644)
        os.rename(join(mount, f"{number:0200}"), join(mount, f"{number + 1:0200}"))

    def directories(number):
        os.mkdir(join(mount, f"d{number:0200}"))
        os.rmdir(join(mount, f"d{number:0200}"))

    step, most = {"xattrs": (xattrs, 2000), "open": (still_open, 800), "symlinks": (symlinks, 20_000), "rewritten": (rewritten, 3000),
                  "renamed": (renamed, 20_000), "directories": (directories, 20_000)}[what]
    with Watch(mount, mount.volume) as watch:
        done = until_full(step, most)
        for file in opened:
            os.close(file)
        if opened:
            mount.drain()
    assert watch.most_bytes <= 64 * MIB
    assert watch.most_rss <= (16 + 300) * MIB
    if what in ("xattrs", "open", "symlinks"):
        assert done < most, "it does not fit"
        for name in os.listdir(mount.path)[:done // 2]:
            if not name.startswith("."):
                os.unlink(join(mount, name))
        wait_until(lambda: until_full(lambda i: os.mknod(join(mount, f"again{i}"), 0o644), 1) == 1, SOON, "room after removals")
    else:
        assert done == most, "what takes no room is never refused"


@pytest.mark.parametrize("what", ["directories", "symlinks"])
def test_names_without_a_body_displace_no_chunks(new_mount, what):
    mount = new_mount({"memory": "16M", "capacity": "16M"})
    with open(join(mount, "chunk"), "wb") as file:
        file.write(b"x" * 2 * MIB)
    mount.drain()

    def make(number):
        path = join(mount, f"n{number}")
        os.mkdir(path) if what == "directories" else os.symlink("t" * 100, path)

    made = until_full(make, 30_000)
    assert made < 30_000
    assert os.stat(join(mount, "chunk")).st_size == 2 * MIB
    for number in range(made):
        (os.rmdir if what == "directories" else os.unlink)(join(mount, f"n{number}"))
    make(made)


@pytest.mark.parametrize("what", ["symlinks", "xattrs"])
def test_what_long_records_took_is_room_at_once(new_mount, what):
    mount = new_mount({"memory": "16M", "capacity": "64M", "evict": "off"})
    os.mkdir(join(mount, "d"))

    def make(number, size):
        if what == "symlinks":
            os.symlink("t" * size, join(mount, f"d/l{number}"))
        else:
            path = join(mount, f"d/d{number // 4}")
            os.makedirs(path, exist_ok=True)
            os.setxattr(path, f"user.a{number % 4}", os.urandom(size))

    made = until_full(lambda number: make(number, 4000), 20_000)
    assert made < 20_000
    shutil.rmtree(join(mount, "d"))
    os.mkdir(join(mount, "d"))
    for number in range(made // 2):
        make(number, 100)


def test_no_inodes_left(new_mount, temp_dir):
    with disk(temp_dir, 256 * MIB, "mkfs.ext4", "-q", "-N", "64") as (where, _, _):
        mount = new_mount({"memory": "64M", "evict": "off"}, volume=os.path.join(where, "volume"))
        chunks = {}

        def store(number, size):
            data = payload(f"chunk{number}", size)
            with open(join(mount, f"chunk{number}.tmp"), "wb") as file:
                file.write(data)
            os.rename(join(mount, f"chunk{number}.tmp"), join(mount, f"chunk{number}"))
            chunks[f"chunk{number}"] = data

        store(0, 100_000)
        mount.drain()

        def spares():  # made once a second, two of each kind
            names = [name for _, _, names in os.walk(mount.volume) for name in names]
            return sum(name.endswith(".solo") for name in names) >= 2 and sum(name.endswith(".pack") for name in names) >= 3

        wait_until(spares, SOON, "there are spare files")
        fillers = until_full(lambda i: open(os.path.join(where, f"filler{i}"), "wb").close(), 1000)
        assert fillers < 1000
        for number in range(1, 13):  # larger than packed bodies are, and more than the memory holds
            store(number, 9 * MIB if number % 2 else 30_000)
        mount.drain()
        for name, data in chunks.items():
            with open(join(mount, name), "rb") as file:
                assert_bytes(file.read(), data, name)
        assert mount.log_text().count("\n") < 200
        for number in range(fillers):
            os.unlink(os.path.join(where, f"filler{number}"))
        store(100, 9 * MIB)
        mount.remount()
        for name, data in chunks.items():
            with open(join(mount, name), "rb") as file:
                assert_bytes(file.read(), data, name)


@pytest.mark.parametrize("left", [0, 2], ids=["none", "two"])
def test_fsck_without_inodes(new_mount, temp_dir, left):
    """Its scratch indexes lie in TMPDIR then; or it tells what to do."""
    with disk(temp_dir, 64 * MIB, "mkfs.ext4", "-q", "-N", "64") as (where, _, _):
        mount = new_mount({"memory": "64M"}, volume=os.path.join(where, "volume"))
        with open(join(mount, "chunk"), "wb") as file:
            file.write(payload("chunk", MIB))
        mount.stop()
        fillers = until_full(lambda i: open(os.path.join(where, f"filler{i}"), "wb").close(), 1000)
        for number in range(left):
            os.unlink(os.path.join(where, f"filler{number}"))
        elsewhere = os.path.join(temp_dir, "scratch")
        os.mkdir(elsewhere)
        result = run_command("fsck", mount.volume, env=dict(os.environ, TMPDIR=elsewhere))
        assert result.returncode == 0, result.stdout + result.stderr
        assert "1 bodies read" in result.stdout
        assert not os.listdir(elsewhere)
        result = run_command("fsck", mount.volume, env=dict(os.environ, TMPDIR=os.path.join(where, "none")))
        assert result.returncode == 8 and "set TMPDIR" in result.stderr, result.stdout + result.stderr
        for number in range(left, fillers):
            os.unlink(os.path.join(where, f"filler{number}"))


def test_a_rebuild_removes_nothing_that_mounts_keep(new_mount, temp_dir):
    """With options of its own, or none, it would find the volume too full."""
    with disk(temp_dir, 300 * MIB, "mkfs.ext4", "-q", "-m", "0") as (where, _, _):
        options = {"memory": "128M", "evict": "off", "capacity": "280M", "keep_free": "1M"}
        mount = new_mount(options, volume=os.path.join(where, "volume"))
        data = payload("chunk", MIB)

        def store(number):
            with open(join(mount, f"chunk{number}"), "wb") as file:
                file.write(data)

        stored = until_full(store, 262)
        mount.drain()
        for number in range(4):
            os.unlink(join(mount, f"chunk{number}"))
        before = sorted(os.listdir(mount.path))
        assert len(before) > 240, stored
        mount.stop()
        time.sleep(7)  # what was opened less than five seconds ago would not go
        rebuilt = run_command("rebuild", mount.volume)
        assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
        mount.start()
        assert sorted(os.listdir(mount.path)) == before


def test_percentages_follow_a_disk_that_grows(new_mount, temp_dir):
    with disk(temp_dir, 320 * MIB, "mkfs.xfs", "-q") as (where, image, loop):
        mount = new_mount({"memory": "32M"}, volume=os.path.join(where, "volume"))
        before = os.statvfs(mount.path).f_blocks
        os.truncate(image, 1200 * MIB)
        subprocess.run(["losetup", "-c", loop], check=True)
        subprocess.run(["xfs_growfs", where], check=True, capture_output=True)
        wait_until(lambda: os.statvfs(mount.path).f_blocks > 3 * before, SOON, "df to show the new size")
        with open(join(mount, "large"), "wb") as file:
            file.write(bytes(400 * MIB))
