"""The coalescing bar in a small form. The fixed cost of a volume (its directories, the index's first pages, the files
opened at the start) weighs ten times more here than in the bar itself, hence the wider bounds."""

import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bars
import coalescing
import kvc_env
import kvc_mount

CHUNKS, SIZE = 1000, 65_536


@pytest.mark.skipif(kvc_env.PLAIN, reason="about the volume below a mount")
def test_many_chunks_become_few_files():
    assert shutil.which("strace"), "strace is not installed: name operations cannot be counted"
    bars.binary_or_exit()
    base = kvc_mount.make_temp_dir()
    try:
        files, on_volume, on_plain, seconds = coalescing.measure(base, CHUNKS, SIZE)
    finally:
        kvc_mount.remove_temp_dir(base)
    coalescing.report(CHUNKS, SIZE, files, on_volume, on_plain, seconds)
    assert sum(count for count, _, _ in files.values()) <= 40
    assert 1.00 <= files["extents"][2] / (CHUNKS * SIZE) <= 1.03
    assert sum(disk for kind, (_, _, disk) in files.items() if kind != "extents") / CHUNKS <= 500
    assert sum(on_plain.values()) >= 3 * CHUNKS, "the writer was not counted"
    assert sum(on_volume.values()) * 30 <= sum(on_plain.values())
