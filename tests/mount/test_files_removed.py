"""Files of the volume that somebody removes or replaces below a mounted volume: what can be written anew is, and the log says so."""

import errno
import glob
import os
import shutil
import threading
import time

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, MountFailed, run_command, wait_until

pytestmark = pytest.mark.needs_daemon


def put(mount, name, size=MIB // 4):
    path = os.path.join(mount.path, name)
    with open(f"{path}.tmp", "wb") as file:
        file.write(payload(name, size))
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.tmp", path)
    directory = os.open(mount.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def check(mount, name, size=MIB // 4):
    with open(os.path.join(mount.path, name), "rb") as file:
        assert_bytes(file.read(), payload(name, size), name)


def take_name(path, copy, what):
    if what.endswith("fifo"):
        os.mkfifo(path)
    elif what.endswith("link"):
        os.symlink(copy, path)
    else:
        os.rename(copy, path)


def kill_and_start(mount):
    mount.kill()
    mount.start()


@pytest.mark.parametrize("what", ["file", "directory", "empty file", "directory when idle", "file when busy", "replaced file", "replaced file that is kept",
                                  "replaced by a fifo", "replaced by a link", "cut file"])
def test_the_journal_is_removed(new_mount, what):
    mount = new_mount({"memory": "64M"})
    journals = os.path.join(mount.volume, "nodes", os.listdir(os.path.join(mount.volume, "nodes"))[0], "1", "journal")
    stored = [] if what == "empty file" else [f"before{number}" for number in range(4)]
    for name in stored:
        put(mount, name)
    ended, written = threading.Event(), []

    def work():
        while not ended.is_set():
            put(mount, f"busy{len(written)}", 5000)
            written.append(f"busy{len(written)}")

    worker = threading.Thread(target=work)
    if what == "file when busy":
        worker.start()
        wait_until(lambda: len(written) > 20, SOON, "chunks are written")
    if what == "directory when idle":  # behind a checkpoint, with nothing synced since
        mount.remount()
        time.sleep(2.5)
    if what.startswith("directory"):
        journals = journals.replace("/1/journal", f"/{mount.status()['epoch']}/journal")
        shutil.rmtree(journals)
    elif what.startswith("replaced"):
        for path in glob.glob(journals + "/*"):
            shutil.copy(path, mount.volume + "/copy")
            os.rename(path, mount.volume + "/kept") if what.endswith("kept") else os.remove(path)
            take_name(path, mount.volume + "/copy", what)
    elif what == "cut file":
        for path in glob.glob(journals + "/*"):
            os.truncate(path, 100)
    else:
        for path in glob.glob(journals + "/*"):
            os.remove(path)
    if what not in ("directory when idle", "cut file"):  # which grows to its length again with what is put there
        put(mount, "behind")  # into a file that nobody finds again
        stored.append("behind")
    told = f"journal was {'replaced' if what.startswith('replaced') else 'cut short' if what == 'cut file' else 'removed'} by others"
    mount.wait_for_log(told)
    wait_until(lambda: glob.glob(journals + "/*"), SOON, "another takes its place")
    put(mount, "after")
    stored.append("after")
    time.sleep(2.5)
    ended.set()
    if what == "file when busy":
        worker.join()
    assert mount.log_text().count(told) == 1
    assert mount.status()["volume"]["state"] == "ok"
    shutil.rmtree(os.path.join(os.path.dirname(os.path.dirname(journals)), "index"))  # nor does the index help
    kill_and_start(mount)
    for name in written:
        check(mount, name, 5000)
    for name in stored:
        check(mount, name)
    if what in ("replaced by a fifo", "replaced by a link"):  # nor is it gone
        assert os.path.lexists(journals + "/0.log.foreign")


@pytest.mark.parametrize("what", ["removed", "renamed", "replaced by a copy", "replaced by a fifo", "replaced by a link"])
def test_an_open_pack_is_removed(new_mount, what):
    mount = new_mount({"memory": "64M"})
    for number in range(4):
        put(mount, f"before{number}")
    for path in glob.glob(mount.volume + "/nodes/*/1/extents/*/*.pack"):
        shutil.copy(path, mount.volume + "/copy")
        os.remove(path) if what == "removed" else os.rename(path, mount.volume + "/kept")
        if what.startswith("replaced"):
            take_name(path, mount.volume + "/copy", what)
    told = []
    for number in range(4):
        while True:  # the fsync() that finds it tells
            try:
                put(mount, f"after{number}")
                break
            except OSError as error:
                told.append(error.errno)
    assert set(told) == {errno.EIO} and len(told) <= 2, told
    mount.wait_for_log(f"{'replaced' if what.startswith('replaced') else 'removed'} by others")
    kill_and_start(mount)
    for number in range(4):
        check(mount, f"after{number}")


@pytest.mark.parametrize("size", [MIB // 4, 5 * MIB])
def test_the_directory_of_extents_is_removed(new_mount, size):
    mount = new_mount({"memory": "64M"})
    extents = glob.glob(mount.volume + "/nodes/*/1")[0] + "/extents"
    commits = mount.status()["writes"]["index_commits"]
    put(mount, "before", size)
    wait_until(lambda: mount.status()["writes"]["index_commits"] > commits, SOON, "a sync of everything, and the next comes in seconds")
    for number in range(3):  # accepted a moment ago, and synced by nobody
        with open(os.path.join(mount.path, f"recent{number}"), "wb") as file:
            file.write(payload(f"recent{number}", size))
    wait_until(lambda: mount.status()["memory"]["dirty_bytes"] == 0, SOON, "they are written")
    shutil.rmtree(extents)
    told = []

    def tell(call):
        while True:  # the one that finds it tells
            try:
                return call()
            except OSError as error:
                told.append(error.errno)

    for number in range(4):
        tell(lambda: put(mount, f"after{number}", size))
    tell(lambda: os.setxattr(os.path.join(mount.path, ".kvcachefs"), "user.kvcachefs.flush", b"1"))
    assert set(told) <= {errno.EIO} and len(told) <= 3, told
    mount.wait_for_log("was removed by others while the volume was mounted, and is made anew")
    assert os.listdir(extents + "/0")
    assert mount.status()["volume"]["state"] == "ok"
    kill_and_start(mount)
    for number in range(4):
        check(mount, f"after{number}", size)
    for number in range(3):
        check(mount, f"recent{number}", size)


@pytest.mark.parametrize("way", ["mount", "repair"])
@pytest.mark.parametrize("what", ["removed", "emptied", "cut", "directory removed"])
def test_the_journal_is_lost_after_a_kill(new_mount, what, way):
    """The index was committed, and not closed: it has all that it had read."""
    mount = new_mount({"memory": "64M"})
    commits = mount.status()["writes"]["index_commits"]
    for number in range(6):
        put(mount, f"chunk{number}")
    os.setxattr(os.path.join(mount.path, ".kvcachefs"), "user.kvcachefs.flush", b"1")
    time.sleep(12)
    wait_until(lambda: mount.status()["writes"]["index_commits"] > commits, SOON, "the index is committed")
    mount.kill()
    for path in glob.glob(mount.volume + "/nodes/*/1/journal/*"):
        if what == "removed":
            os.remove(path)
        elif what == "directory removed":
            shutil.rmtree(os.path.dirname(path))
        else:
            os.truncate(path, 100 if what == "cut" else 0)
    packs = sorted(glob.glob(mount.volume + "/nodes/*/1/extents/*/*"))
    if way == "repair":
        repaired = run_command("fsck", mount.volume, "--repair")
        assert repaired.returncode == 1, repaired.stdout + repaired.stderr
    for _ in range(2):
        mount.start()
        for number in range(6):
            check(mount, f"chunk{number}")
        time.sleep(2)
        mount.kill()
    assert sorted(glob.glob(mount.volume + "/nodes/*/1/extents/*/*")) == packs
    shutil.rmtree(glob.glob(mount.volume + "/nodes/*/index")[0])  # a checkpoint is in its place
    mount.start()
    for number in range(6):
        check(mount, f"chunk{number}")
    assert "index.damaged" not in "".join(os.listdir(glob.glob(mount.volume + "/nodes/*")[0]))


@pytest.mark.parametrize("how", ["removed", "cut", "a link"])
def test_the_file_volume_is_lost(new_mount, how):
    mount = new_mount({"memory": "64M"})
    put(mount, "before")
    file = os.path.join(mount.volume, "VOLUME")
    with open(file, "rb") as opened:
        content = opened.read()

    def lose_it():
        if how == "cut":
            os.truncate(file, 100)
        else:
            os.remove(file)
        if how == "a link":
            os.symlink("elsewhere", file)

    def is_back():
        with open(file, "rb") as opened:
            return opened.read() == content

    lose_it()
    mount.wait_for_log("others while it was mounted, and is put back")
    assert is_back() and mount.status()["volume"]["state"] == "ok"
    lose_it()
    mount.remount()  # the unmount looks for it as well
    assert is_back()
    check(mount, "before")
    mount.kill()
    lose_it()
    with pytest.raises(MountFailed, match="fsck --repair"):
        mount.start()
    found = run_command("fsck", mount.volume)
    assert found.returncode == 4 and "error: VOLUME is" in found.stdout, found.stdout
    repaired = run_command("fsck", "--repair", mount.volume)
    assert repaired.returncode == 1 and "made anew" in repaired.stdout, repaired.stdout
    assert run_command("fsck", mount.volume).returncode == 0
    mount.start()
    check(mount, "before")


def test_the_file_volume_of_another_volume_is_left_alone(new_mount):
    mount, other = new_mount({"memory": "64M"}), new_mount({"memory": "64M"})
    put(mount, "before")
    file = os.path.join(mount.volume, "VOLUME")
    os.rename(file, file + ".kept")
    shutil.copy(os.path.join(other.volume, "VOLUME"), file)
    wait_until(lambda: mount.status()["volume"]["state"] == "degraded", SOON, "it is told")
    assert "another volume" in mount.status()["volume"]["reason"]
    put(mount, "meanwhile")
    os.rename(file + ".kept", file)
    wait_until(lambda: mount.status()["volume"]["state"] == "ok", SOON, "it is over")
    mount.remount()
    check(mount, "before")
    check(mount, "meanwhile")
