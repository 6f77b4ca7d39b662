"""The quickstart's chunks, on a plain directory: what it stores it finds, and it notices what is missing or wrong."""

import pathlib
import subprocess
import sys

import pytest


@pytest.fixture
def chunks(repository, tmp_path):
    def run(action, count=3):
        command = [sys.executable, "-B", repository / "mount-scripts" / "quickstart_chunks.py", action, tmp_path, "--chunks", str(count)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert run("store").returncode == 0
    return run


def stored(tmp_path, pattern):
    return sorted(pathlib.Path(tmp_path).rglob(pattern))


def test_load_after_store(chunks, tmp_path):
    done = chunks("load")
    assert (done.returncode, "every byte is the one that was stored" in done.stdout) == (0, True)
    assert len(stored(tmp_path, "*.safetensors")) == len(stored(tmp_path, "*.metadata")) == 3
    assert not stored(tmp_path, "*.tmp*")


@pytest.mark.parametrize("offset", [100, 4096, 4096 + 3 * 2**20 - 1])
def test_one_changed_byte(chunks, tmp_path, offset):
    path = stored(tmp_path, "*.safetensors")[1]
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    assert chunks("load").returncode == 1


def test_missing_sidecar_and_missing_chunk(chunks, tmp_path):
    stored(tmp_path, "*.metadata")[0].unlink()
    done = chunks("load")
    assert (done.returncode, "is missing" in done.stderr) == (1, True)
    assert chunks("load", count=4).returncode == 1
