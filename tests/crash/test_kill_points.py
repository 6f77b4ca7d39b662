"""The daemon dies at each named point of store/base/kill_point.h while processes write; after the remount the manifest holds, and fsck finds
nothing.

Every case starts from a copy of one volume whose daemon has died twice: it has a checkpoint, journals behind it, dead ranges, and an extent that
no record names. So whatever a start, an upkeep or an unmount may have to do is to be done.
"""

import os
import random
import re
import shutil
import signal
import stat
import subprocess
import time

import pytest

import kvc_env
import kvc_mount
import manifest
from judge import Everything, allow_what_was_not_promised, check
from kvc_mount import SOON, Mount, MountFailed, run_command, wait_until
from writer_processes import Writers
from writers import version_of_round

pytestmark = pytest.mark.needs_daemon

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "store", "base", "kill_point.h")
# Small packs, bodies with an extent of their own, little memory: every step comes within a second.
OPTIONS = {"memory": "16M", "extent_size": "1M", "pack_below": "200K", "flush_interval_ms": "20"}

# At which passing it is to happen. Points of every write: one of the first dozen. The others: the first; where a start passes it too, also the
# next, which is that of the running mount.
DRAWN = {
    "extent-made", "extent-header", "body-placed", "body-written", "solo-cut", "spill-written", "name-replaced", "name-removed",
    "batch-made", "batch-torn", "batch-appended", "replacement-appended", "removal-appended", "batch-applied",
}  # fmt: skip
PASSINGS = {
    "index-before-commit": [1, 2],
    "index-committed": [1, 2],
    "journal-made": [1, 2],
    "journal-header": [1, 2],
    "batch-replayed": [1, 3],
    "checkpoint-half-loaded": [20],  # records: crashed() sees to it that there are more
}
REBUILDS = {"checkpoint-half-loaded"}  # passed when the index is gone
BEFORE_WRITERS = {"leftover-punched"}  # in the background of a start; writers may replace all that it would look at
AT_UNMOUNT = {"drained", "index-closed", "index-marked"}
FIRST_MOUNT = {"volume-linked"}  # passed when the file VOLUME is made: once in the life of a volume, or when it was lost
OF_GC = {"node-set-aside", "node-half-removed"}  # of a command, in tests/mount/test_gc.py
IN_BLOCKS = {"journal-next"}  # of journals in blocks, which a volume on a network has


def kill_points():
    with open(HEADER, encoding="utf-8") as header:
        table = re.search(r"kKillPoints =.*?\}\);", header.read(), re.DOTALL)
    return re.findall(r'^ +"([a-z-]+)",', table[0], re.MULTILINE)


def cases():
    return [(point, passing) for point in kill_points() if point not in FIRST_MOUNT | OF_GC for passing in (["drawn"] if point in DRAWN else PASSINGS.get(point, [1]))]


def died(mount):
    """By the kill, and nothing else."""
    if mount.process.poll() is None:
        return False
    assert mount.process.returncode == -signal.SIGKILL, f"the daemon ended with {mount.process.returncode}:\n{mount.log_text()[-4000:]}"
    return True


def has_checkpoint(volume):
    for root, _, files in os.walk(os.path.join(volume, "nodes")):
        if os.path.basename(root) == "checkpoint" and any(name.isdigit() for name in files):
            return True
    return False


def judge(mount, directory, durability, round_number):
    names, _ = manifest.load(directory)
    if durability == "none":
        # What nobody touched in this round was on the volume before it, and stays.
        allow_what_was_not_promised({name: each for name, each in names.items() if touched(each, round_number)})
    found, problems = check(mount.path, names)
    assert not problems, "; ".join(problems[:10])
    return {name: version for name, version in found.items() if version}


def touched(expected, round_number):
    return len(expected.everything) != 2 or expected.everything[1] >= version_of_round(round_number)


def add_dead_ranges(volume):
    """As if bodies had been written behind those of each pack, and never journaled."""
    for root, _, files in os.walk(os.path.join(volume, "nodes")):
        for name in files:
            if name.endswith(".pack"):
                with open(os.path.join(root, name), "ab") as pack:
                    pack.truncate(-(-pack.tell() // 4096) * 4096)
                    pack.write(b"dead" * 32768)


def journal_batches(path, count):
    """So many batches of the journal at least that name nothing new: the directory's own mode, changed and back."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(count + count % 2):
            os.chmod(path, mode ^ 0o020 if number % 2 == 0 else mode)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def crashed(request):
    """crashed(durability): (volume, manifest, {name: version}) to be copied; made once each."""
    made, bases = {}, []

    def make(durability):
        if durability in made:
            return made[durability]
        base = kvc_mount.make_temp_dir()
        bases.append(base)
        directory, copy = os.path.join(base, "manifest"), os.path.join(base, "copy")
        os.mkdir(directory)
        mount = Mount(base, {**OPTIONS, "durability": durability})
        try:
            mount.start()
            writers = Writers(mount, directory, 1, {})
            # Of the 8 x 12 names; what the checkpoint has is at least what was journaled of them.
            wait_until(lambda: len(os.listdir(mount.path)) >= 40, SOON, "40 names are there")
            time.sleep(0.4 * kvc_env.SCALE)
            mount.kill()
            assert writers.results() > 0
            os.environ["KVCACHEFS_KILL_POINT"] = "extent-made:20"
            try:
                mount.start()
            finally:
                del os.environ["KVCACHEFS_KILL_POINT"]
            found = judge(mount, directory, durability, 1)
            manifest.settle(directory, found)
            wait_until(lambda: has_checkpoint(mount.volume), SOON, "the unclean end is covered by a checkpoint")
            journal_batches(mount.path, 3)  # to be replayed: what the writers get done may be fewer
            writers = Writers(mount, directory, 2, found)
            wait_until(lambda: died(mount), SOON, "20 extents are made")
            mount.kill()
            assert writers.results() > 0
            subprocess.run(["cp", "-a", "--sparse=always", mount.volume, copy], check=True)
            add_dead_ranges(copy)
            mount.start()
            found = judge(mount, directory, durability, 2)
            manifest.settle(directory, found)
        finally:
            mount.destroy()
        made[durability] = (copy, directory, found)
        return made[durability]

    before, manifest.Expected = manifest.Expected, Everything
    yield make
    manifest.Expected = before
    for base in bases:
        kvc_mount.remove_temp_dir(base)


def die_in_start(mount):
    try:
        mount.start()
        return False
    except MountFailed as failure:
        assert failure.returncode == -signal.SIGKILL, failure
        return True


@pytest.mark.parametrize("durability", ["close", "none"])
@pytest.mark.parametrize("point,passing", cases(), ids=lambda value: str(value))
def test_killed_at(crashed, new_mount, monkeypatch, point, passing, durability):
    volume, records, found = crashed(durability)
    if passing == "drawn":
        passing = random.Random(f"{kvc_env.seed()}/{point}/{durability}").randint(1, 12)
    blocks = {"journal": "blocks"} if point in IN_BLOCKS else {}
    mount = new_mount({**OPTIONS, **blocks, "durability": durability}, start=False)
    directory = os.path.join(mount.base, "manifest")
    shutil.copytree(records, directory)
    subprocess.run(["cp", "-a", "--sparse=always", volume, mount.volume], check=True)
    if point in REBUILDS:
        (node,) = os.listdir(os.path.join(mount.volume, "nodes"))
        shutil.rmtree(os.path.join(mount.volume, "nodes", node, "index"))

    monkeypatch.setenv("KVCACHEFS_KILL_POINT", f"{point}:{passing}")
    died_in_start = die_in_start(mount)
    if not died_in_start and point in BEFORE_WRITERS:
        wait_until(lambda: died(mount), SOON, f"{point} was passed {passing} times")
        mount.kill()  # what is left of it
    elif not died_in_start:
        writers = Writers(mount, directory, 3, found, large=point.startswith("spill-"))
        if point in AT_UNMOUNT:
            time.sleep(0.1 * kvc_env.SCALE)
            writers.stop()
            run_command("umount", mount.path)
        try:
            wait_until(lambda: died(mount), SOON, f"{point} was passed {passing} times")
        except AssertionError:
            if point not in AT_UNMOUNT:
                writers.stop()
            raise
        mount.kill()  # what is left of it
        if point not in AT_UNMOUNT:
            writers.results()
    monkeypatch.delenv("KVCACHEFS_KILL_POINT")

    mount.start()
    judge(mount, directory, durability, 3)
    mount.stop()
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0, f"fsck: exit code {fsck.returncode}: {fsck.stdout}{fsck.stderr}"


@pytest.mark.parametrize("point", ["batch-torn", "batch-appended", "journal-header", "mark-appended", "journals-half-removed", "drained"])
def test_killed_with_a_journal_in_blocks(crashed, new_mount, monkeypatch, point):
    """The steps around the journal once more, with each batch in blocks of its own, on a volume whose journals were not."""
    monkeypatch.setitem(OPTIONS, "journal", "blocks")
    test_killed_at(crashed, new_mount, monkeypatch, point, "drawn" if point in DRAWN else 1, "close")


@pytest.mark.parametrize("point", sorted(FIRST_MOUNT))
def test_a_first_mount_that_is_killed_is_finished_by_the_next(new_mount, monkeypatch, point):
    mount = new_mount(start=False)
    monkeypatch.setenv("KVCACHEFS_KILL_POINT", point)
    assert die_in_start(mount)
    monkeypatch.delenv("KVCACHEFS_KILL_POINT")
    assert sorted(os.listdir(mount.volume))[0] == ".kvcachefs-first-mount"
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(b"chunk")
    mount.stop()
    assert sorted(os.listdir(mount.volume)) == [".kvcachefs-first-mount", "VOLUME", "nodes"]
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert file.read() == b"chunk"
    mount.stop()
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0, f"fsck: exit code {fsck.returncode}: {fsck.stdout}{fsck.stderr}"


def test_killed_while_a_lost_volume_file_is_put_back(new_mount, monkeypatch):
    mount = new_mount()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(b"chunk")
    mount.stop()
    monkeypatch.setenv("KVCACHEFS_KILL_POINT", "volume-linked")
    mount.start()
    monkeypatch.delenv("KVCACHEFS_KILL_POINT")
    os.unlink(os.path.join(mount.volume, "VOLUME"))
    wait_until(lambda: died(mount), SOON, "the daemon is killed while it puts VOLUME back")
    mount.kill()  # what is left of it
    assert len([name for name in os.listdir(mount.volume) if name.startswith("VOLUME")]) == 2
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert file.read() == b"chunk"
    mount.stop()
    assert [name for name in sorted(os.listdir(mount.volume)) if name.startswith("VOLUME")] == ["VOLUME"]


@pytest.mark.parametrize("text", ["no-such-point", "batch-made:0", "batch-made:", "batch-made:1x"])
def test_what_cannot_be_armed_is_refused(new_mount, monkeypatch, text):
    monkeypatch.setenv("KVCACHEFS_KILL_POINT", text)
    with pytest.raises(MountFailed) as failure:
        new_mount()
    assert failure.value.returncode == 1
    if text == "no-such-point":
        assert all(name in failure.value.output for name in kill_points()), failure.value.output
    else:
        assert f"kill point '{text}'" in failure.value.output


def test_lists_agree():
    """A name misspelt in this file would draw no passing, or rebuild nothing."""
    assert len(kill_points()) == len(set(kill_points())) > 30
    assert DRAWN | set(PASSINGS) | REBUILDS | BEFORE_WRITERS | AT_UNMOUNT | FIRST_MOUNT | IN_BLOCKS <= set(kill_points())
