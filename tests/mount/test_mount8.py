"""The mount as mount(8) and other file systems meet it: flags, remount, overlayfs."""

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess

import pytest

import kvc_env
from kvc_data import payload
from kvc_env import MIB
from kvc_mount import mount_entry, run_command

pytestmark = [pytest.mark.needs_daemon, pytest.mark.needs_root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
needs_overlayfs = pytest.mark.skipif("overlay" not in open("/proc/filesystems").read(), reason="no overlayfs in this kernel")


def remount(mount, options):
    return run_command("mount", mount.volume, mount.path, "-o", f"remount,{options}")


def flags_of(mount):
    return set(mount_entry(mount.path)[1].split(","))


def option_of(mount, name):
    return os.getxattr(mount.path, f"user.kvcachefs.option.{name}").decode()


@needs_overlayfs
@pytest.mark.parametrize("flags, device_works", [("suid,dev", True), ("nosuid,nodev", False)])
def test_what_root_asks_mount_8_for_is_in_force(temp_dir, flags, device_works):
    """mount(8) does not tell its helper of suid and dev: what it does not tell of is as it has it."""
    for name in ("prefix/bin", "prefix/sbin", "sbin", "volume", "mnt"):
        os.makedirs(os.path.join(temp_dir, name))
    os.symlink(kvc_env.BINARY, os.path.join(temp_dir, "prefix/bin/kvcachefs"))
    shutil.copy(REPOSITORY / "mount-scripts" / "mount.fuse.kvcachefs", os.path.join(temp_dir, "prefix/sbin"))
    os.symlink(os.path.join(temp_dir, "prefix/sbin/mount.fuse.kvcachefs"), os.path.join(temp_dir, "sbin/mount.fuse.kvcachefs"))
    script = """
        mount -t overlay none -o lowerdir="$1/sbin:/usr/sbin" /usr/sbin
        mount -t fuse.kvcachefs "$1/volume" "$1/mnt" -o "$2,noatime,nodiratime,relatime,memory=64M"
        trap 'umount "$1/mnt"' EXIT
        grep " $1/mnt " /proc/self/mountinfo | cut -d' ' -f6
        mknod "$1/mnt/null" c 1 3
        if echo text 2>/dev/null >"$1/mnt/null"; then echo device works; fi
        mount -o remount,ro,suid,dev "$1/mnt"
        grep " $1/mnt " /proc/self/mountinfo | cut -d' ' -f6
        if touch "$1/mnt/file" 2>/dev/null; then echo writable; fi
        mount -o remount,rw,noexec "$1/mnt"
        grep " $1/mnt " /proc/self/mountinfo | cut -d' ' -f6
        touch "$1/mnt/file"
    """
    done = subprocess.run(["unshare", "-m", "sh", "-ec", script, "sh", temp_dir, flags], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False, timeout=120 * kvc_env.SCALE)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " info " not in line]
    security = set() if device_works else {"nosuid", "nodev"}
    assert set(lines[0].split(",")) == {"rw", "noatime", "nodiratime"} | security
    assert ("device works" in lines) == device_works
    if device_works:
        assert set(lines[2].split(",")) == {"ro", "noatime", "nodiratime"}
        assert set(lines[3].split(",")) == {"rw", "noatime", "nodiratime", "noexec"}
    assert "writable" not in lines


def test_remount_of_flags(new_mount):
    mount = new_mount()
    assert {"rw", "nosuid", "nodev"} <= flags_of(mount)
    path = os.path.join(mount.path, "file")
    with open(path, "wb") as file:
        result = remount(mount, "ro")
        assert result.returncode == 1 and "open for writing" in result.stderr
        file.write(payload("file", MIB))
    assert remount(mount, "ro").returncode == 0
    assert {"ro", "nosuid", "nodev"} <= flags_of(mount)
    assert mount.status()["capacity"]["staged_bytes"] == 0  # it was written out
    with pytest.raises(OSError) as caught:
        open(path, "ab")
    assert caught.value.errno == errno.EROFS
    with open(path, "rb") as file:
        assert file.read() == payload("file", MIB)
    assert remount(mount, "rw,noexec").returncode == 0
    assert {"rw", "nosuid", "nodev", "noexec"} <= flags_of(mount)
    with open(path, "ab") as file:
        file.write(b"more")


def test_remount_of_options(new_mount):
    mount = new_mount({"memory": "64M", "threads": "3"})
    assert remount(mount, "memory=64M,threads=3,memory=96M,log_level=debug").returncode == 0  # as with a line of fstab before
    assert option_of(mount, "memory") == "96M" and option_of(mount, "log_level") == "debug"
    assert remount(mount, "rw,user_id=0,group_id=0,default_permissions").returncode == 0  # as of mountinfo
    for options, said in [
        ("memory=32M,threads=4", "option 'threads' is 3 and cannot be changed to 4 while mounted"),
        ("memory=32M,allow_other", "allow_other"),
        ("memory=32M,nonsense", "unknown option 'nonsense'"),
        ("memory=1", "memory=1"),
        ("memory=32M,noatime", "'noatime' is off and cannot be changed to on"),
    ]:
        result = remount(mount, options)
        assert result.returncode == 1 and said in result.stderr, result.stderr
        assert option_of(mount, "memory") == "96M", "a part was changed before the refusal"
    assert remount(mount, "ro,memory=64M").returncode == 0
    assert option_of(mount, "memory") == "64M"
    result = remount(mount, "memory=96M")
    assert result.returncode == 1 and "read-only" in result.stderr
    assert remount(mount, "rw,memory=96M").returncode == 0
    assert option_of(mount, "memory") == "96M"


def test_remount_of_what_was_mounted_read_only(new_mount):
    mount = new_mount()
    mount.remount(ro=True)
    result = remount(mount, "rw")
    assert result.returncode == 1 and "'ro' is on" in result.stderr, result.stderr
    assert "ro" in flags_of(mount)


def test_remount_of_another_mount(new_mount, temp_dir):
    mount = new_mount()
    result = run_command("mount", temp_dir, mount.path, "-o", "remount,ro")
    assert result.returncode == 1 and mount.volume in result.stderr
    assert "rw" in flags_of(mount)
    result = run_command("mount", mount.volume, temp_dir, "-o", "remount,ro")
    assert result.returncode == 1 and "no kvcachefs is mounted there" in result.stderr


@contextlib.contextmanager
def overlay(base, lower):
    top = {name: os.path.join(base, f"overlay-{name}") for name in ("upper", "work", "merged")}
    for path in top.values():
        os.mkdir(path)
    options = f"lowerdir={lower},upperdir={top['upper']},workdir={top['work']}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, top["merged"]], check=True)
    try:
        yield top["merged"]
    finally:
        subprocess.run(["umount", top["merged"]], check=True)


@needs_overlayfs
def test_overlayfs_takes_the_mount_as_its_lower_layer(new_mount, temp_dir):
    """With chunks that are passed through: they count as one of the two levels that the kernel allows."""
    mount = new_mount()
    lower = os.path.join(mount.path, "lower")
    os.makedirs(os.path.join(lower, "directory"))
    chunk = payload("chunk", 9 * MIB)
    for name, data in [("chunk", chunk), ("small", b"small"), ("directory/other", b"other")]:
        with open(os.path.join(lower, name), "wb") as file:
            file.write(data)
    mount.remount()
    with overlay(temp_dir, lower) as merged:
        with open(os.path.join(merged, "chunk"), "rb") as file:
            assert file.read() == chunk
        with open(os.path.join(merged, "chunk"), "ab") as file:
            file.write(b"more")
        with open(os.path.join(merged, "chunk"), "rb") as file:
            assert file.read() == chunk + b"more"
        with open(os.path.join(merged, "small"), "ab") as file:
            file.write(b" more")
        shutil.rmtree(os.path.join(merged, "directory"))
        assert sorted(os.listdir(merged)) == ["chunk", "small"]
    assert sorted(os.listdir(lower)) == ["chunk", "directory", "small"]
    with open(os.path.join(lower, "chunk"), "rb") as file:
        assert file.read() == chunk
    assert mount.status()["reads"]["passthrough_opens"] > 0


@needs_overlayfs
def test_chunks_of_a_volume_on_overlayfs_are_passed_through(new_mount, temp_dir):
    """As in a container: there the mount is a level more, and no layer of another overlayfs."""
    lower = os.path.join(temp_dir, "lower")
    os.mkdir(lower)
    with overlay(temp_dir, lower) as merged:
        mount = new_mount({"memory_file_min": 0}, volume=os.path.join(merged, "volume"))
        path = os.path.join(mount.path, "chunk")
        with open(path, "wb") as file:
            file.write(payload("chunk", 9 * MIB))
        mount.remount()
        with open(path, "rb") as file:
            assert file.read() == payload("chunk", 9 * MIB)
        passed = mount.status()["reads"]["passthrough_opens"]
        mount.stop()
        assert passed > 0
