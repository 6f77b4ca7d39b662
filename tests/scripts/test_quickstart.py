"""What quickstart.sh refuses to touch, up to its first step, for which a stand-in ends the run."""

import os
import shutil
import subprocess

import pytest

INSTALLS = 9  # the exit status of the stand-in: all was found well


@pytest.fixture
def quickstart(repository, tmp_path):
    """quickstart(arguments..., before=a shell command) -> (exit status, stderr), each in a mount namespace of its own where it may."""
    scripts = tmp_path / "repo" / "mount-scripts"
    scripts.mkdir(parents=True)
    shutil.copy(repository / "mount-scripts" / "quickstart.sh", scripts)
    install = scripts / "install-deps.sh"
    install.write_text(f"#!/bin/sh\nexit {INSTALLS}\n")
    install.chmod(0o755)

    def run(*arguments, before=None):
        command = [scripts / "quickstart.sh", *arguments]
        if before:
            command = ["unshare", "-m", "sh", "-ec", before + '; status=0; "$@" || status=$?; mountpoint -q "$2/mnt" || exit 77; exit "$status"', "sh", *command]
        done = subprocess.run(command, env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    return run


def make_volume(directory):
    (directory / "volume").mkdir(parents=True)
    (directory / "volume" / "VOLUME").write_text("somebody's")


def test_a_new_directory_and_its_own_volume(quickstart, tmp_path):
    assert quickstart(tmp_path / "new") == (INSTALLS, "")
    (tmp_path / "made" / "volume").mkdir(parents=True)
    assert quickstart(tmp_path / "made") == (INSTALLS, "")
    make_volume(tmp_path / "again")
    (tmp_path / "again" / ".volume-made-by-quickstart").touch()
    assert quickstart(tmp_path / "again") == (INSTALLS, "")
    make_volume(tmp_path / "data" / "kvcachefs" / "quickstart")
    assert quickstart() == (INSTALLS, "")


def test_the_volume_of_somebody_else(quickstart, tmp_path):
    make_volume(tmp_path / "theirs")
    status, stderr = quickstart(tmp_path / "theirs")
    assert (status, "quickstart did not make it" in stderr) == (1, True)
    assert os.listdir(tmp_path / "theirs") == ["volume"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (a mount namespace)")
@pytest.mark.parametrize("name", ["plain", "with space"])
def test_the_mount_of_somebody_else(quickstart, tmp_path, name):
    (tmp_path / name / "mnt").mkdir(parents=True)
    status, stderr = quickstart(tmp_path / name, before=f"mount -t tmpfs theirs '{tmp_path / name}/mnt'")
    assert (status, "something else mounted on it (tmpfs theirs)" in stderr) == (1, True), stderr
