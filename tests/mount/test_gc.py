"""`kvcachefs gc`: a node that does not run is put in order or leaves the volume, while another one has it mounted; and the daemon that was only
away, whose node was taken meanwhile, publishes nothing any more."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import kvc_env
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until
from test_shared import exists, gone, load, publish, refresh, store, tree

pytestmark = pytest.mark.needs_daemon
EXIT_NODE_LOST = 3

# What the command does, from its start to its end; at each the process dies once.
KILLED_AT = [
    "epoch-made", "journal-made", "journal-header", "batch-replayed", "batch-torn", "batch-appended", "data-synced", "mark-appended", "mark-synced",
    "index-before-commit", "index-committed", "checkpoint-torn", "checkpoint-written", "checkpoint-named", "journals-half-removed", "journals-removed",
    "reclaim-begun", "index-closed",
]  # fmt: skip
KILLED_IN_REMOVAL = ["extent-removed", "node-set-aside", "node-half-removed"]


def gc(volume, *options, node="a", kill_at=None):
    environment = {**os.environ, "KVCACHEFS_KILL_POINT": kill_at} if kill_at else None
    return run_command("gc", volume, "--node", node, *options, env=environment)


def done(result):
    assert result.returncode == 0, f"{result.returncode}: {result.stdout}{result.stderr}"
    return result.stdout


def bytes_below(directory):
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def part(mount, node="a"):
    return os.path.join(mount.volume, "nodes", node)


def stop(mount):
    """As where its machine stands still. Returns when no thread of the daemon runs any more."""

    def stands():
        threads = os.listdir(f"/proc/{mount.pid}/task")
        return all(open(f"/proc/{mount.pid}/task/{each}/stat").read().rpartition(")")[2].split()[0] == "T" for each in threads)

    os.kill(mount.pid, signal.SIGSTOP)
    wait_until(stands, SOON, "it stands")


@pytest.fixture
def nodes(new_mount):
    first = new_mount({"node": "a", "extent_size": "1M", "pack_below": "200K"})
    return first, new_mount({"node": "b"}, volume=first.volume)


def fill(a, b):
    """Of both; b then replaces and removes some of what a stored, which a has not answered."""
    for index in range(8):
        store(a, f"a/{index}", payload(f"a{index}", 300 * KIB if index % 2 else MIB))
        store(b, f"b/{index}", payload(f"b{index}", 100 * KIB))
    store(b, "a/of b", payload("of b", 1000))
    publish(a, b)
    a.kill()
    store(b, "a/0", payload("new", 2000))
    os.unlink(os.path.join(b.path, "a/1"))
    b.drain()


def expected_of_b():
    names = {".": None, "b": None, "a": None, "a/of b": payload("of b", 1000), "a/0": payload("new", 2000)}
    return {**names, **{f"b/{index}": payload(f"b{index}", 100 * KIB) for index in range(8)}}


def expected():
    return {**expected_of_b(), **{f"a/{index}": payload(f"a{index}", 300 * KIB if index % 2 else MIB) for index in range(2, 8)}}


def test_what_a_dead_node_holds_comes_back(nodes):
    a, b = nodes
    fill(a, b)
    before = bytes_below(part(b))
    assert "would come back" in done(gc(b.volume, "--dry-run"))
    assert bytes_below(part(b)) == before
    told = done(gc(b.volume))
    assert "given back" in told and "6 files" in told, told
    assert bytes_below(part(b)) <= before - MIB, "what b replaced and removed"
    assert tree(b) == expected()
    done(gc(b.volume))  # there is nothing to do
    refresh(b)
    assert tree(b) == expected()
    a.start()
    publish(a, b)
    assert tree(a) == tree(b) == expected()


def test_a_small_volume_is_not_filled_with_the_reserve_of_a_large_one(new_mount):
    """Neither by the command, which does not know its capacity, nor by a life that had a larger one."""
    mount = new_mount({"node": "a", "capacity": "16M"})
    store(mount, "chunk", payload("chunk", 300 * KIB))
    kept = mount.status()["capacity"]["reserve_bytes"]
    mount.stop()
    done(gc(mount.volume))
    mount.start()
    assert mount.status()["capacity"]["reserve_bytes"] == kept
    assert load(mount, "chunk") == payload("chunk", 300 * KIB)
    mount.remount(capacity="1G")
    assert mount.status()["capacity"]["reserve_bytes"] > kept
    mount.remount(capacity="16M")
    assert mount.status()["capacity"]["reserve_bytes"] == kept
    for index in range(20):
        store(mount, f"after/{index}", payload(index, 300 * KIB))
    assert load(mount, "chunk") == payload("chunk", 300 * KIB)


def test_a_node_that_leaves_takes_its_files_and_nothing_else(nodes):
    a, b = nodes
    fill(a, b)
    of_b = bytes_below(part(b, "b"))
    assert "would be removed" in done(gc(b.volume, "--remove", "--dry-run"))
    assert os.path.isdir(part(b))
    assert "removed" in done(gc(b.volume, "--remove"))
    assert not os.path.exists(part(b))
    assert bytes_below(os.path.join(b.volume, "removed")) == 0
    gone(b, "a/2")
    assert tree(b) == expected_of_b()
    assert bytes_below(part(b, "b")) >= of_b
    wait_until(lambda: b.status()["peers"] == [], SOON, "the node is forgotten")
    assert b.status()["volume"]["state"] == "ok"
    b.remount()
    assert tree(b) == expected_of_b()
    a.start()  # another node, of the same name
    publish(a, b)
    assert tree(a) == expected_of_b()
    store(a, "a/2", b"again")
    os.unlink(os.path.join(a.path, "b/7"))
    publish(a, b)
    assert load(b, "a/2") == b"again"
    assert not exists(b, "b/7")
    assert tree(a) == tree(b)


def test_who_has_a_file_of_it_open_keeps_the_node(nodes):
    a, b = nodes
    store(a, "chunk", payload("open", 3 * MIB))
    publish(a, b)
    with open(os.path.join(b.path, "chunk"), "rb", buffering=0) as file:
        file.read(1)
        a.kill()

        def is_told_of_it():
            result = gc(b.volume, "--remove", "--wait", "8")  # b looks for another epoch when a's HEAD has stood for 3 s
            assert result.returncode == 1 and "Run it again" in result.stderr, result.stderr
            return "open" in result.stderr

        wait_until(is_told_of_it, SOON, "b has told that it has it open")
        assert os.path.isdir(part(b))
        gone(b, "chunk")
        os.setxattr(b.path, "user.kvcachefs.drop_caches", b"1")
        assert_bytes(os.pread(file.fileno(), 4 * MIB, 0), payload("open", 3 * MIB))
    done(gc(b.volume, "--remove"))
    assert not os.path.exists(part(b))


def test_a_node_that_runs_is_left_alone(nodes):
    a, b = nodes
    store(a, "chunk", b"1")
    publish(a, b)
    for options in ([], ["--remove"], ["--dry-run"]):
        result = gc(b.volume, *options)
        assert result.returncode == 1 and result.stderr.startswith("kvcachefs gc: "), result.stderr
        assert "in use" in result.stderr and f"host={socket.gethostname()}"[:68] in result.stderr and a.path in result.stderr
    store(a, "chunk2", b"2")
    publish(a, b)
    assert load(b, "chunk2") == b"2"


def test_what_is_wrong_is_refused(nodes):
    _, b = nodes
    for volume, node, code, text in (
        (b.volume, "nobody", 1, "no node 'nobody', only a, b"),
        (b.volume, "../a", 2, "no name of a node"),
        (b.base, "a", 1, "not a kvcachefs volume"),
        ("/nonexistent", "a", 1, "/nonexistent"),
    ):
        result = gc(volume, "--remove", node=node)
        assert result.returncode == code and text in result.stderr, result.stderr
    assert run_command("gc", b.volume).returncode == 2
    assert run_command("gc", "--node", "a").returncode == 2
    assert run_command("gc", b.volume, "--node", "a", "--wait", "-1").returncode == 2
    assert "--dry-run" in run_command("gc", "--help").stdout


def test_killed_wherever_it_is_it_can_be_run_again(nodes):
    a, b = nodes
    fill(a, b)
    killed = 0
    for point in KILLED_AT:
        result = gc(b.volume, kill_at=point)
        assert result.returncode in (0, -signal.SIGKILL), f"{point}: {result.stderr}"
        killed += result.returncode != 0
        assert tree(b) == expected(), point
        a.start()  # so that there is something to do once more
        a.kill()
    assert killed >= len(KILLED_AT) // 2
    done(gc(b.volume))
    refresh(b)
    assert tree(b) == expected()
    result = run_command("fsck", b.volume, "--node", "a")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("point", KILLED_AT + KILLED_IN_REMOVAL)
def test_a_removal_that_is_killed_goes_on(nodes, point):
    a, b = nodes
    fill(a, b)
    result = gc(b.volume, "--remove", kill_at=point)
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    if point in KILLED_IN_REMOVAL:
        assert result.returncode == -signal.SIGKILL
    for name, content in expected_of_b().items():  # those of a may be on their way
        assert content is None or load(b, name) == content
    done(gc(b.volume, "--remove"))
    assert not os.path.exists(part(b))
    assert bytes_below(os.path.join(b.volume, "removed")) == 0
    for index in range(1, 8):
        gone(b, f"a/{index}")
    assert tree(b) == expected_of_b()
    a.start()
    publish(a, b)
    assert tree(a) == expected_of_b()


@pytest.mark.parametrize("point", ["batch-appended", "mark-synced", "index-committed", "checkpoint-named", "reclaim-begun", "extent-removed"])
def test_a_node_that_comes_back_after_a_removal_that_was_killed(nodes, point):
    """What was removed is read until who reads has heard that it is gone: never an error."""
    a, b = nodes
    fill(a, b)
    names = [f"a/{index}" for index in range(2, 8)]
    assert gc(b.volume, "--remove", kill_at=point).returncode == -signal.SIGKILL
    a.start()
    for _ in range(20):
        for name in names:
            try:
                assert_bytes(load(b, name), expected()[name])
            except FileNotFoundError:
                pass
        os.setxattr(b.path, "user.kvcachefs.drop_caches", b"1")
    publish(a, b)
    assert tree(a) == tree(b)
    for name, content in expected_of_b().items():
        assert content is None or load(b, name) == content
    assert b.status()["evictions"]["objects"] == 0


def test_a_daemon_whose_node_was_taken_publishes_nothing(new_mount, monkeypatch):
    """As where a machine stands still, and its lock is lost with its connection: here the lock's file is removed."""
    monkeypatch.setenv("KVCACHEFS_FENCE_MS", "1000")
    a = new_mount({"node": "a", "flush_interval_ms": "60000", "durability": "close"})
    b = new_mount({"node": "b"}, volume=a.volume)
    store(a, "before", payload("before", 300 * KIB))
    publish(a, b)
    late = []

    def store_late(name):
        try:
            store(a, name, payload(name, 300 * KIB))
        except OSError as error:
            late.append(error.errno)

    stop(a)
    os.unlink(os.path.join(part(b), "LOCK"))
    writers = [threading.Thread(target=store_late, args=(f"late{index}",), daemon=True) for index in range(4)]
    for writer in writers:
        writer.start()
    stopped_s = time.monotonic()
    done(gc(b.volume, "--index", os.path.join(b.base, "index")))  # for its own is locked as well, on its machine
    wait_until(lambda: time.monotonic() - stopped_s > 2, SOON, "it is away for longer than the limit")
    os.kill(a.pid, signal.SIGCONT)
    try:
        assert a.process.wait(SOON * kvc_env.SCALE) == EXIT_NODE_LOST, a.log_text()
    except subprocess.TimeoutExpired:
        raise AssertionError("it goes on:\n" + a.log_text()[-4000:]) from None
    a.process = None
    with pytest.raises(OSError) as dead:  # the mount is no bare directory now, into which clients would go on writing
        os.listdir(a.path)
    assert dead.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    for writer in writers:
        writer.join(SOON * kvc_env.SCALE)
        assert not writer.is_alive()
    assert len(late) == len(writers), "no store was answered well"
    assert_last_word_is("was taken over or removed", a)
    refresh(b)
    assert set(tree(b)) == {".", "./before"}
    a.start()
    publish(a, b)
    assert set(tree(a)) == set(tree(b)) == {".", "./before"}
    assert_bytes(load(b, "before"), payload("before", 300 * KIB))


def assert_last_word_is(text, mount):
    """No warning or error comes behind it, or many before it."""
    lines = [line for line in mount.log_text().splitlines() if " error " in line or " warning " in line]
    assert text in lines[-1] and "Mount the volume again" in lines[-1], "\n".join(lines)
    assert len(lines) <= 5, "\n".join(lines)


def test_a_daemon_whose_node_was_removed_says_what_to_do_and_no_more(new_mount, monkeypatch):
    """All its files are gone, so all that it tries to do fails."""
    monkeypatch.setenv("KVCACHEFS_FENCE_MS", "1000")
    a = new_mount({"node": "a", "flush_interval_ms": "60000"})
    b = new_mount({"node": "b"}, volume=a.volume)
    store(a, "before", payload("before", 300 * KIB))
    publish(a, b)
    for index in range(100):
        store(a, f"late{index}", payload(index, 300 * KIB))
    stop(a)
    os.unlink(os.path.join(part(b), "LOCK"))
    stopped_s = time.monotonic()
    done(gc(b.volume, "--remove", "--index", os.path.join(b.base, "index")))
    wait_until(lambda: time.monotonic() - stopped_s > 4, SOON, "it is away for longer than the limit")
    os.kill(a.pid, signal.SIGCONT)
    assert a.process.wait(SOON * kvc_env.SCALE) == EXIT_NODE_LOST, a.log_text()
    a.process = None
    assert_last_word_is("was taken over or removed", a)


def test_a_daemon_that_was_away_and_lost_nothing_goes_on(new_mount, monkeypatch):
    monkeypatch.setenv("KVCACHEFS_FENCE_MS", "500")
    a = new_mount({"node": "a"})
    b = new_mount({"node": "b"}, volume=a.volume)
    for round_number in range(2):
        stop(a)
        stopped_s = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped_s > 1, SOON, "it is away for longer than the limit")
        os.kill(a.pid, signal.SIGCONT)
        store(a, f"chunk{round_number}", payload(round_number, 100 * KIB))
        publish(a, b)
        assert_bytes(load(b, f"chunk{round_number}"), payload(round_number, 100 * KIB))


def test_what_is_held_for_others_is_no_error_of_a_volume(nodes):
    """A node that stands still may read on what was removed since: its files stay until the next mount, and fsck tells so."""
    a, b = nodes

    def files():
        return sum(name.endswith(".solo") for _, _, names in os.walk(part(a)) for name in names)

    for index in range(6):
        store(a, f"a/{index}", payload(f"a{index}", MIB))
    publish(a, b)
    stop(b)
    try:
        for index in range(4):
            os.unlink(os.path.join(a.path, f"a/{index}"))
        a.stop()
        assert files() == 6, "what the other may read is there"
        for repair in (), ("--repair",), ():
            result = run_command("fsck", a.volume, "--node", "a", *repair)
            assert result.returncode == 0, result.stdout
            assert result.stdout.count("other nodes may read it still: the next mount removes it") == 4, result.stdout
            assert files() == 6
        shutil.rmtree(os.path.join(part(a), "index"))  # as on another machine
        assert run_command("fsck", a.volume, "--node", "a").returncode == 0
    finally:
        os.kill(b.pid, signal.SIGCONT)
    a.start()
    publish(a, b)
    assert set(tree(a)) == {".", "a", "a/4", "a/5"}
    wait_until(lambda: files() == 2, SOON, "it is given back")
