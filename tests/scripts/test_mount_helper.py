"""mount.fuse.kvcachefs, installed beside a stand-in for the command that writes down how it was called."""

import os
import shutil
import subprocess

import pytest


@pytest.fixture
def helper(repository, tmp_path):
    """helper(arguments...) -> (exit status, the arguments `kvcachefs` was called with or None, stderr)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "sbin").mkdir()
    calls = tmp_path / "calls"
    command = tmp_path / "bin" / "kvcachefs"
    command.write_text(f"#!/bin/sh\n[ $KVCACHEFS_MOUNT_HELPER = 1 ] || exit 99\nprintf '%s\\n' \"$@\" >{calls}\nexit ${{KVCACHEFS_EXIT:-0}}\n")
    command.chmod(0o755)
    installed = tmp_path / "sbin" / "mount.fuse.kvcachefs"
    shutil.copy(repository / "mount-scripts" / "mount.fuse.kvcachefs", installed)

    def call(*arguments, exit_status=0):
        calls.unlink(missing_ok=True)
        # As mount(8) does: by its path, with hardly any environment.
        done = subprocess.run([installed, *arguments], env={"PATH": "/usr/bin:/bin", "KVCACHEFS_EXIT": str(exit_status)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        called_with = calls.read_text().splitlines() if calls.exists() else None
        return done.returncode, called_with, done.stderr

    return call


def test_without_options(helper):
    assert helper("/volume", "/mnt")[:2] == (0, ["mount", "/volume", "/mnt"])


def test_our_options_are_passed_on(helper):
    status, call, _ = helper("/volume", "/mnt", "-o", "memory=1G,allow_other,capacity=90%,ro")
    assert (status, call) == (0, ["mount", "/volume", "/mnt", "-o", "memory=1G,allow_other,capacity=90%,ro"])


def test_options_for_mount_and_systemd_are_kept_back(helper):
    fstab = "rw,defaults,nofail,noauto,_netdev,user,users,x-systemd.automount,x-systemd.requires-mounts-for=/a,memory=1G,comment=a b,X-x"
    assert helper("/volume", "/mnt", "-o", fstab)[1] == ["mount", "/volume", "/mnt", "-o", "memory=1G"]
    assert helper("/volume", "/mnt", "-o", "rw")[1] == ["mount", "/volume", "/mnt"]


def test_flags_are_passed_on(helper):
    flags = "suid,dev,nosuid,nodev,noexec,noatime,nodiratime,sync"
    assert helper("/volume", "/mnt", "-o", f"rw,exec,async,relatime,{flags}")[1] == ["mount", "/volume", "/mnt", "-o", flags]


def test_a_remount_is_passed_on_with_the_defaults_that_it_may_bring_back(helper):
    flags = "rw,noatime,remount,atime,exec,user_id=0,memory=1G"
    assert helper("/volume", "/mnt", "-o", f"{flags},nofail")[:2] == (0, ["mount", "/volume", "/mnt", "-o", flags])


def test_unknown_options_reach_the_command_which_refuses_them(helper):
    assert helper("/volume", "/mnt", "-o", "nonsense")[1][-1] == "nonsense"


def test_names_with_spaces_and_patterns(helper):
    assert helper("/a volume", "/mnt/*", "-o", "index=/x y/*")[1] == ["mount", "/a volume", "/mnt/*", "-o", "index=/x y/*"]


def test_flags_of_mount(helper):
    assert helper("/volume", "/mnt", "-sv", "-n", "-t", "fuse.kvcachefs", "-o", "ro")[1] == ["mount", "/volume", "/mnt", "-o", "ro"]


def test_fake_mounts_nothing(helper):
    assert helper("/volume", "/mnt", "-f")[:2] == (0, None)


def test_failure_is_reported_as_mount_expects(helper):
    assert helper("/volume", "/mnt", exit_status=7)[0] == 32


@pytest.mark.parametrize("arguments, said", [
    (["/volume"], "usage"),
    (["/volume", "/mnt", "-Z"], "unknown option"),
    (["/volume", "/mnt", "extra"], "extra"),
    (["/volume", "/mnt", "-N", "1"], "nsenter"),
])
def test_wrong_calls(helper, arguments, said):
    status, call, stderr = helper(*arguments)
    assert (status, call) == (1, None)
    assert said in stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (a mount namespace)")
def test_mount_8_finds_it(repository, tmp_path):
    """In a mount namespace where the helper lies in /sbin and the stand-in in /usr/local/bin, as `cmake --install` puts them."""
    for name in ("sbin", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(repository / "mount-scripts" / "mount.fuse.kvcachefs", tmp_path / "sbin")
    command = tmp_path / "bin" / "kvcachefs"
    command.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/calls\n")
    command.chmod(0o755)
    (tmp_path / "volume").mkdir()
    (tmp_path / "mnt").mkdir()
    script = """
        mount -t overlay none -o lowerdir="$1/sbin:/usr/sbin" /usr/sbin
        mount -t overlay none -o lowerdir="$1/bin:/usr/local/bin" /usr/local/bin
        mount -t fuse.kvcachefs "$1/volume" "$1/mnt" -o memory=1G,nofail,x-systemd.automount
    """
    done = subprocess.run(["unshare", "-m", "sh", "-ec", script, "sh", tmp_path], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["mount", f"{tmp_path}/volume", f"{tmp_path}/mnt", "-o", "memory=1G"]
