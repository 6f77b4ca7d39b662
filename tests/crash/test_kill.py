"""kill -9 of the daemon at random moments while eight processes write; after the remount everything acknowledged is there."""

import os
import random
import time

import pytest

import kvc_env
import manifest
from judge import Everything, allow_what_was_not_promised, check, version_of
from kvc_mount import SOON, wait_until
from writer_processes import Writers

pytestmark = pytest.mark.needs_daemon

ROUNDS = 100 if kvc_env.LONG else 12


def usable(path):
    """A dead mount is in the mount table as well, until the next daemon has taken its place."""
    try:
        os.listdir(path)
        return True
    except OSError:
        return False


def kill_rounds(mount, durability, monkeypatch):
    monkeypatch.setattr(manifest, "Expected", Everything)
    directory = os.path.join(mount.base, "manifest")
    os.mkdir(directory)
    seed = kvc_env.seed()
    moments = random.Random(seed)
    found, total = {}, 0
    for round_number in range(1, ROUNDS + 1):
        writers = Writers(mount, directory, round_number, found)
        time.sleep(moments.uniform(0.05, 1.2) * kvc_env.SCALE)
        mount.kill()
        operations = writers.results()
        mount.start()
        wait_until(lambda: usable(mount.path) and mount.alive(), SOON, "the mount answers after the kill")
        names, acknowledged = manifest.load(directory)
        total += operations
        if durability == "none":
            allow_what_was_not_promised(names)
        found, problems = check(mount.path, names)
        assert not problems, f"round {round_number}, {operations} operations, {acknowledged} acknowledged: " + "; ".join(problems[:10])
        manifest.settle(directory, {name: version for name, version in found.items() if version})
    assert total > 0, "the manifest is empty: no writer got anything done"
    mount.remount()
    names, _ = manifest.load(directory)
    _, problems = check(mount.path, names)
    assert not problems, "after a clean remount: " + "; ".join(problems[:10])
    print(f"{ROUNDS} rounds, {total} operations acknowledged")


@pytest.mark.deadline(120 * ROUNDS)
@pytest.mark.parametrize("durability", ["close", "none"])
def test_kill_while_eight_processes_write(new_mount, monkeypatch, durability):
    kill_rounds(new_mount({"durability": durability}), durability, monkeypatch)


def test_a_manifest_is_judged():
    """The check itself can fail: a lost, a resurrected and a mixed body are told apart."""
    lost = manifest.Expected()
    lost.begin(7)
    lost.done(7)
    assert "lost" in version_of("/nonexistent/w0n0", "w0n0", lost)[1]
    removed = manifest.Expected()
    removed.begin(7)
    removed.done(7)
    removed.begin(0)
    removed.done(0)
    assert "is back" in version_of(__file__, "w0n0", removed)[1]
    assert "shows none" in version_of(__file__, "w0n0", lost)[1]
