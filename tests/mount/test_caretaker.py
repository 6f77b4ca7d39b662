"""A node whose daemon is gone is tended by another one: what is oldest of it makes room, what others removed of it comes back; and its own daemon,
when it begins meanwhile, has it."""

import errno
import os
import signal
import threading
import time

import pytest

import kvc_env
from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until
from kvc_process import in_process
from kvc_volume import Samples
from test_gc import bytes_below, done, part, stop
from test_shared import load, publish, refresh, tree
from test_shared import store as store_one
from test_shared_capacity import CAPACITY, CHUNK, OPTIONS, get, put, store

pytestmark = pytest.mark.needs_daemon

TENDED = {**OPTIONS, "adopt_after": "2"}


def caretaker(mount):
    return mount.status()["caretaker"]


def check(volume, *nodes):
    for node in nodes:
        result = run_command("fsck", volume, "--node", node)
        assert result.returncode == 0, f"{node}: {result.stdout}{result.stderr}"


def agree(a, b):
    """What is evicted goes on going for a moment after the last store."""

    def are_one():
        publish(a, b)
        try:
            return tree(a) == tree(b)
        except FileNotFoundError:
            return False

    wait_until(are_one, SOON, "both have one tree")


class Churn:
    """Stores chunks on a mount, one after the other, until it is left."""

    def __init__(self, mount, first=10_000):
        self.mount, self.next, self.first, self.longest_s = mount, first, first, 0.0
        self.failure = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self._over.is_set():
                begun = time.monotonic()
                put(self.mount, self.next)
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                self.next += 1
                time.sleep(0.01)
        except BaseException as failure:  # pylint: disable=broad-exception-caught
            self.failure = failure

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self.end()

    def end(self):
        self._over.set()
        self._thread.join()


@pytest.fixture
def nodes(new_mount):
    """a has two thirds of the capacity, and is gone."""
    a = new_mount({**TENDED, "node": "a"})
    b = new_mount({**TENDED, "node": "b"}, volume=a.volume)
    for first in (0, 42):  # two prompts
        in_process(store, a, first, 42)
    publish(a, b)
    a.kill()
    return a, b


def test_what_a_dead_node_has_makes_room(nodes):
    a, b = nodes
    with Samples(a.volume) as samples, Churn(b) as churn:
        wait_until(lambda: caretaker(b)["evicted_objects"] >= 60 or churn.failure, SOON, "what is old goes")
        # b comes to have far more than fits beside what a had.
        wait_until(lambda: b.status()["objects"]["total"] >= 90 or churn.failure, SOON, "b has nearly all")
    assert churn.failure is None, churn.failure
    assert samples.most <= CAPACITY
    status = b.status()
    told = status["caretaker"]
    assert told["turns"] >= 1 and told["evicted_bytes"] >= 60 * CHUNK and told["problem"] == ""
    kept = [number for number in range(churn.first, churn.next) if get(b, number)]
    assert len(kept) >= 60 and min(kept) >= churn.next - 200, (len(kept), churn.next - churn.first)
    assert all(get(b, number) in (True, None) for number in range(84))
    a.start()
    agree(a, b)
    a.stop()
    b.stop()
    check(a.volume, "a", "b")


def test_what_was_removed_of_a_dead_node_comes_back(nodes):
    a, b = nodes
    before = bytes_below(part(b))
    stored = sorted(os.listdir(b.path))
    assert len(stored) > 60, "some may have made room for b when it began"
    for name in stored[:20]:
        os.unlink(os.path.join(b.path, name))
    b.drain()
    wait_until(lambda: caretaker(b)["returned_bytes"] >= 19 * CHUNK, SOON, "it comes back")
    assert bytes_below(part(b)) <= before - 19 * CHUNK
    assert caretaker(b)["evicted_objects"] == 0
    wait_until(lambda: caretaker(b)["tends"] == "", SOON, "it leaves")
    turns = caretaker(b)["turns"]
    time.sleep(15)
    assert caretaker(b)["turns"] == turns, "what was answered asks for nothing"
    a.start()
    publish(a, b)
    assert tree(a) == tree(b) and sorted(os.listdir(a.path)) == stored[20:]
    a.stop()
    b.stop()
    check(a.volume, "a", "b")


def test_a_node_that_nothing_needs_and_one_that_stands_still_are_let_be(new_mount):
    a = new_mount({**TENDED, "node": "a"})
    b = new_mount({**TENDED, "node": "b"}, volume=a.volume)
    store(a, 0, 20)
    publish(a, b)
    a.kill()
    time.sleep(8)
    assert caretaker(b)["turns"] == 0
    a.start()
    publish(a, b)
    stop(a)
    try:
        os.unlink(os.path.join(b.path, sorted(os.listdir(b.path))[0]))
        b.drain()
        time.sleep(10)
        told = caretaker(b)
        assert told["turns"] == 0 and told["problem"] == "", told
    finally:
        os.kill(a.pid, signal.SIGCONT)
    agree(a, b)


def test_its_daemon_has_the_node_back_while_it_is_tended(nodes):
    a, b = nodes
    with Samples(a.volume) as samples, Churn(b) as churn:
        wait_until(lambda: caretaker(b)["tends"] == "a", SOON, "it is tended")
        refused = run_command("gc", a.volume, "--node", "a")
        assert refused.returncode == 1 and "command=tend" in refused.stdout + refused.stderr, refused
        a.start()
        assert caretaker(b)["tends"] == ""
        for number in range(1000, 1020):
            put(a, number)
    assert churn.failure is None, churn.failure
    assert samples.most <= CAPACITY
    agree(a, b)
    assert all(get(b, number) is not False for number in range(1000, 1020))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_end_of_who_tends_it_in_the_middle_of_it(nodes, how):
    a, b = nodes
    for round_number in range(3):
        with Churn(b, first=20_000 + 10_000 * round_number) as churn:
            wait_until(lambda: caretaker(b)["tends"] == "a" or churn.failure, SOON, "it is tended")
            time.sleep(0.7 * round_number)
            if how == "kill":
                b.kill()
            else:
                churn.end()
                b.stop()
        check(a.volume, "a")
        b.start()
    for number in range(84):
        assert get(b, number) is not False, number
    a.start()
    agree(a, b)
    b.stop()
    a.stop()
    check(a.volume, "a", "b")


def test_one_of_two_tends_it(nodes, new_mount):
    a, b = nodes
    c = new_mount({**TENDED, "node": "c"}, volume=a.volume)
    with Samples(a.volume) as samples, Churn(b) as first, Churn(c, first=50_000) as second:
        wait_until(lambda: caretaker(b)["evicted_objects"] + caretaker(c)["evicted_objects"] >= 60, SOON, "what is old goes")
        time.sleep(3)
    assert first.failure is None and second.failure is None, (first.failure, second.failure)
    assert samples.most <= CAPACITY
    assert max(first.longest_s, second.longest_s) < SOON * kvc_env.SCALE
    wait_until(lambda: caretaker(b)["tends"] == caretaker(c)["tends"] == "", 3 * SOON, "it leaves")
    for node in (b, c):
        publish(b, c)
        assert all(get(node, number) in (True, None) for first, last in ((0, 84), (10_000, 10_999), (50_000, 50_999)) for number in range(first, last))
    assert sorted(os.listdir(b.path)) == sorted(os.listdir(c.path))


def test_what_others_use_of_it_stays(nodes):
    """b reads the second half of what a stored again and again: it is the first half that goes."""
    a, b = nodes
    over = threading.Event()

    def read():
        while not over.wait(0.5):
            for number in range(42, 84):
                get(b, number)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        number, until = 10_000, time.monotonic() + 5 * SOON  # it takes 55 s alone on two processors
        while caretaker(b)["evicted_objects"] < 30 and time.monotonic() < until:
            put(b, number)
            number += 1
            time.sleep(0.02 if number < 10_025 else 0.7)  # what is used is told to its node every 10 to 20 s
        evicted = caretaker(b)["evicted_objects"]
        old = [each for each in range(42) if get(b, each) is None]
        used = [each for each in range(42, 84) if get(b, each) is None]
    finally:
        over.set()
        reader.join()
    assert evicted >= 30 and len(old) >= 25 and len(used) <= 5, (evicted, len(old), len(used))


def test_a_small_file_of_it_is_answered_for_as_well(new_mount):
    a = new_mount({**TENDED, "node": "a"})
    b = new_mount({**TENDED, "node": "b"}, volume=a.volume)
    store_one(a, "d/one", payload("one", 100))
    store_one(a, "d/two", payload("two", 100 * KIB))
    publish(a, b)
    a.kill()
    store_one(b, "d/one", payload("of b", MIB))
    os.unlink(os.path.join(b.path, "d/two"))
    os.rename(os.path.join(b.path, "d/one"), os.path.join(b.path, "three"))
    os.rmdir(os.path.join(b.path, "d"))
    b.drain()
    wait_until(lambda: caretaker(b)["turns"] >= 1 and caretaker(b)["tends"] == "", SOON, "it was tended")
    assert tree(b) == {".": None, "./three": payload("of b", MIB)}
    done(run_command("gc", a.volume, "--node", "a", "--dry-run"))
    a.start()
    publish(a, b)
    assert tree(a) == tree(b) == {".": None, "./three": payload("of b", MIB)}


def test_killed_nodes_of_changing_names_do_not_fill_a_volume(new_mount):
    """What each held for itself comes back, so the capacity is for what is stored."""
    volume, pods = None, [f"pod{index}" for index in range(44)]
    for name in pods:
        pod = new_mount({**TENDED, "evict": "off", "node": name}, **({"volume": volume} if volume else {}))
        volume = pod.volume
        store_one(pod, name, payload(name, 1000))
        pod.drain()
        pod.kill()
        pod.destroy()
    before = bytes_below(os.path.join(volume, "nodes"))
    assert before > 40 * MIB, "each had kept a MiB for its journal"
    last = new_mount({**TENDED, "evict": "off", "node": "last"}, volume=volume)
    with Samples(volume) as samples:
        wait_until(lambda: caretaker(last)["returned_bytes"] >= 43 * MIB, SOON, "it comes back")
        assert caretaker(last)["turns"] == 0 and caretaker(last)["problem"] == ""
        assert bytes_below(os.path.join(volume, "nodes")) <= before - 40 * MIB

        def stores():
            try:
                put(last, len(os.listdir(last.path)))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
            return len(os.listdir(last.path)) >= len(pods) + 80

        wait_until(stores, SOON, "its room is used")
    assert samples.most <= CAPACITY
    assert all(load(last, name) == payload(name, 1000) for name in pods)
    last.stop()
    check(volume, pods[0], pods[-1], "last")
