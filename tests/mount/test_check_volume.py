"""`kvcachefs check-volume`: two of them at once on a directory, also one that is in use. What it finds on file systems that break a property
is in store/pair_check/pair_check_test.cc, and on real clients of NFS in tests/nfslab/check_volume.py."""

import os
import subprocess

import pytest

import kvc_env
from kvc_mount import run_command

pytestmark = pytest.mark.needs_daemon


def check_twice(directory, *options):
    """Both results, as (exit code, output)."""
    command = [kvc_env.BINARY, "check-volume", str(directory), "--rounds", "4", *options]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    outputs = [each.communicate()[0] for each in running]
    return [(each.returncode, output) for each, output in zip(running, outputs)]


def test_beside_a_mount(new_mount):
    mount = new_mount()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(b"chunk" * 1000)
    before = sorted(os.listdir(mount.volume))
    for code, output in check_twice(mount.volume):
        assert code == 0, output
        assert output.count("holds: ") == 4
        assert "run one of the two checks on another machine" in output, "it proves nothing here"
    assert sorted(os.listdir(mount.volume)) == before
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert file.read() == b"chunk" * 1000


def test_before_the_first_mount(new_mount):
    """What a killed one left is in nobody's way, nor in that of the first mount."""
    mount = new_mount(start=False)
    os.makedirs(os.path.join(mount.volume, ".kvcachefs-check-volume", "listing-of-1"), exist_ok=True)
    mount.start()
    mount.stop()
    for code, output in check_twice(mount.volume, "--quiet"):
        assert code == 0
        assert output.count("\n") == 1 and "run one of the two checks on another machine" in output
    assert ".kvcachefs-check-volume" not in os.listdir(mount.volume)


def test_alone(tmp_path):
    result = run_command("check-volume", str(tmp_path), "--wait", "1")
    assert result.returncode == 1
    assert "nobody came within 1 s" in result.stderr
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("arguments,code", [([], 2), (["/proc/no-such-directory"], 1), (["/tmp", "--wait", "0"], 2), (["/tmp", "--rounds", "x"], 2)])
def test_wrong_use(arguments, code):
    result = run_command("check-volume", *arguments)
    assert result.returncode == code
    assert result.stderr.strip() or result.stdout.strip()
    assert not os.path.exists("/tmp/.kvcachefs-check-volume")
