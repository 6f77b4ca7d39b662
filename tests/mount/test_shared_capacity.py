"""Two nodes on one volume share its capacity: never more than that is on the volume, and who writes gets what others do not use any more."""

import errno
import os
import random
import signal
import threading
import time

import pytest

import kvc_env
from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, order, run_command, wait_until
from kvc_volume import Samples, allocated_bytes
from test_gc import stop

pytestmark = pytest.mark.needs_daemon

CAPACITY = 64 * MIB
CHUNK = 512 * KIB
OPTIONS = {"capacity": "64M", "keep_free": "1M", "memory": "32M", "lease_ms": "0"}
LONGEST_WAIT_MS = SOON * kvc_env.SCALE * 1000  # all waits for others end after 10 s without return; the rest is what a loaded machine takes for the rounds


def name_of(number):
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}.bin"


def put(mount, number):
    path = os.path.join(mount.path, name_of(number))
    with open(f"{path}.tmp{threading.get_ident()}", "xb", buffering=0) as file:
        file.write(payload(f"shared/{number % 64}", CHUNK))
    os.rename(f"{path}.tmp{threading.get_ident()}", path)


def get(mount, number):
    """None: absent; else whether it is right."""
    try:
        with open(os.path.join(mount.path, name_of(number)), "rb", buffering=0) as file:
            return file.read(2 * CHUNK) == payload(f"shared/{number % 64}", CHUNK)
    except (FileNotFoundError, OSError) as error:
        if isinstance(error, FileNotFoundError) or error.errno == 5:  # EIO: it went while it was read
            return None
        raise


def in_threads(*work):
    failures = []

    def run(each):
        try:
            each()
        except BaseException as failure:  # pylint: disable=broad-exception-caught
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def store(mount, first, count):
    for number in range(first, first + count):
        put(mount, number)


def until_full(mount, first):
    """How many chunks could be stored."""
    for number in range(first, first + 2 * CAPACITY // CHUNK):
        try:
            put(mount, number)
        except OSError as error:
            assert error.errno == 28, error
            return number - first
    raise AssertionError("more was stored than there is")


def physical(mount):
    return mount.status()["capacity"]["physical_bytes"]


def sees(mount, node, *states):
    return any(peer["node"] == node and peer["state"] in states for peer in mount.status()["peers"])


def two_nodes(new_mount, options):
    a = new_mount({**options, "node": "a"})
    b = new_mount({**options, "node": "b"}, volume=a.volume)
    wait_until(lambda: sees(a, "b", "live") and sees(b, "a", "live"), SOON, "both know each other")
    return a, b


@pytest.fixture
def nodes(new_mount):
    return two_nodes(new_mount, OPTIONS)


def test_four_writers_on_two_nodes_store_ten_times_the_capacity(nodes):
    a, b = nodes
    count = 10 * CAPACITY // CHUNK // 4
    with Samples(a.volume) as samples:
        in_threads(*(lambda mount=mount, index=index: store(mount, index * count, count) for index, mount in enumerate((a, a, b, b))))
    assert samples.most <= CAPACITY
    assert samples.most >= CAPACITY // 2
    for mount in nodes:
        status = mount.status()
        assert status["errors"]["no_space"] == 0
        assert status["evictions"]["objects"] > 0
        assert status["capacity"]["limit_bytes"] == CAPACITY
        assert status["capacity"]["physical_bytes"] <= status["capacity"]["claim_bytes"] <= CAPACITY
    for mount in nodes:
        found = [get(mount, number) for number in range(4 * count)]
        assert False not in found, "a chunk is not what was stored"
        assert found.count(True) * CHUNK >= CAPACITY // 3
    df = os.statvfs(a.path)
    assert df.f_blocks * df.f_frsize == CAPACITY


def test_what_an_idle_node_keeps_of_the_others_counts(new_mount):
    options = {**OPTIONS, "evict": "off"}
    mounts = [new_mount({**options, "node": "a"})]
    mounts += [new_mount({**options, "node": name}, volume=mounts[0].volume) for name in ("b", "c")]
    wait_until(lambda: all(sees(mounts[0], name, "live") for name in ("b", "c")), SOON, "they know each other")
    a, idle = mounts[0], mounts[1:]
    # Where records are all that is stored each node has as much of them as their own.
    with Samples(a.volume) as samples:
        for number in range(10_000):
            path = os.path.join(a.path, f"file-{number}")
            try:
                with open(path, "xb"):
                    pass
                os.setxattr(path, "user.large", os.urandom(30_000))
            except OSError as error:
                assert error.errno == 28, error
                break
        else:
            raise AssertionError("more was stored than there is")
        for mount in mounts:
            mount.drain()
            order(mount.path, "refresh")
        # The journals of a do not wait for them: they load anew what they had, beside it or, where there is no room for both, in its place.
        stored = set(os.listdir(a.path))
        for mount in idle:
            wait_until(lambda mount=mount: set(os.listdir(mount.path)) == stored, SOON, "all is known to all")

        def counts_what_is_there(mount, name):
            there = allocated_bytes(os.path.join(a.volume, "nodes", name))
            return there - 1 * MIB <= physical(mount) <= there + 4 * MIB

        for mount, name in zip(idle, ("b", "c")):
            wait_until(lambda mount=mount, name=name: counts_what_is_there(mount, name), SOON, "it counts what it has of a, though it stores nothing")
    assert samples.most <= CAPACITY


def test_idle_nodes_set_little_aside_for_what_they_keep_of_others(new_mount):
    options = {**OPTIONS, "capacity": "128M"}
    mounts = [new_mount({**options, "node": "a"})]
    mounts += [new_mount({**options, "node": name}, volume=mounts[0].volume) for name in "bcdefg"]
    wait_until(lambda: all(sees(mounts[0], name, "live") for name in "bcdefg"), SOON, "they know each other")
    writers = mounts[:2]
    attribute = os.urandom(15_000)
    with Samples(mounts[0].volume) as samples:
        for number in range(500):  # 4 MB of bodies, and of attributes 4 MB on each node
            path = os.path.join(writers[number % 2].path, f"{number:06}" + "z" * 100)
            with open(path, "xb", buffering=0) as file:
                file.write(b"y" * 5000)
                os.setxattr(path, "user.meta", attribute[: 100 + number * 7919 % 14_900])  # ENOSPC is an error here
        time.sleep(2)

        def sets_little_aside(mount):
            capacity = mount.status()["capacity"]
            return capacity["wish_bytes"] - capacity["physical_bytes"] < 8 * MIB

        for mount in mounts[2:]:
            wait_until(lambda mount=mount: sets_little_aside(mount), SOON, "it wishes for little more than it has")
        assert samples.most <= 128 * MIB
    assert len(os.listdir(mounts[2].path)) == 500, "nothing had to go: it all fits"


def test_who_writes_alone_gets_what_the_other_does_not_use(nodes):
    a, b = nodes
    with Samples(a.volume) as samples:
        store(b, 10_000, 2 * CAPACITY // CHUNK)
        held = physical(b)
        first = 0
        deadline = time.monotonic() + 5 * SOON
        while physical(a) < CAPACITY * 6 // 10 and time.monotonic() < deadline:
            store(a, first, 16)
            first += 16
    assert held > CAPACITY // 2, "b had nearly all"
    assert physical(a) >= CAPACITY * 6 // 10, (physical(a), physical(b), a.status()["capacity"], b.status()["capacity"])
    assert samples.most <= CAPACITY
    assert a.status()["errors"]["no_space"] == 0
    assert {get(a, number) for number in range(first)} <= {None, True}  # none of them has to go where all that b has is older


def test_bytes_of_a_killed_node_count_and_it_comes_back(nodes):
    a, b = nodes
    with Samples(a.volume) as samples:
        store(a, 0, CAPACITY * 5 // 10 // CHUNK)
        a.drain()
        a.kill()
        store(b, 10_000, 2 * CAPACITY // CHUNK)  # evicts its own
        assert physical(b) < CAPACITY // 2
        a.start()
        assert any(get(a, number) for number in range(CAPACITY // CHUNK // 2)), "what it had is there"
        in_threads(lambda: store(a, 20_000, CAPACITY // CHUNK), lambda: store(b, 30_000, CAPACITY // CHUNK))
        b.remount()
        in_threads(lambda: store(a, 40_000, CAPACITY // CHUNK), lambda: store(b, 50_000, CAPACITY // CHUNK))
    assert samples.most <= CAPACITY
    for mount in nodes:
        assert mount.status()["errors"]["no_space"] == 0
    assert False not in {get(mount, number) for mount in nodes for number in range(50_000, 50_128)}


def test_without_eviction_both_together_fill_the_volume(new_mount):
    a = new_mount({**OPTIONS, "node": "a", "evict": "off"})
    b = new_mount({**OPTIONS, "node": "b", "evict": "off"}, volume=a.volume)
    wait_until(lambda: sees(a, "b", "live") and sees(b, "a", "live"), SOON, "both know each other")

    with Samples(a.volume) as samples:
        store(a, 0, 16)
        stored = until_full(b, 1000)
        assert stored * CHUNK > CAPACITY // 2, "what a does not use is for b"
        until_full(a, 100)
    assert samples.most <= CAPACITY
    assert all(get(a, number) for number in range(16))
    assert all(get(b, number) for number in range(1000, 1000 + stored))
    os.unlink(os.path.join(b.path, name_of(1000)))
    put(b, 2000)


def test_a_second_node_writes_at_once_on_an_empty_volume(new_mount):
    a = new_mount({**OPTIONS, "node": "a"})
    store(a, 0, 8)
    b = new_mount({**OPTIONS, "node": "b"}, volume=a.volume)
    put(b, 1000)
    capacity = b.status()["capacity"]
    assert capacity["room_waits"] == 0, capacity
    assert capacity["claim_bytes"] + a.status()["capacity"]["claim_bytes"] <= CAPACITY
    store(b, 1001, 16)
    assert all(get(b, number) for number in range(1000, 1017))


def test_a_call_waits_also_where_all_that_others_have_was_written_a_moment_ago(nodes):
    a, b = nodes
    enough = threading.Event()

    def claims_all_and_wishes_for_more():
        capacity = a.status()["capacity"]
        return CAPACITY * 7 // 8 <= capacity["claim_bytes"] <= capacity["wish_bytes"]

    def fill_in_place():
        for number in range(2_000):
            if enough.is_set():
                break
            with open(os.path.join(a.path, f"in-place-{number}"), "xb", buffering=0) as file:
                file.write(payload(f"shared/{number % 64}", CHUNK))

    def come():
        try:
            wait_until(claims_all_and_wishes_for_more, SOON, "a has it all")
            for number in range(4):  # none of them fits into the claim of a node that has stored nothing
                with open(os.path.join(b.path, f"large-{number}"), "xb", buffering=0) as file:
                    assert file.write(bytes(8 * MIB)) == 8 * MIB
        finally:
            enough.set()

    in_threads(fill_in_place, come)
    for mount in nodes:
        assert mount.status()["errors"]["no_space"] == 0


def test_a_node_that_is_alone_claims_no_more_than_it_may_need_soon(new_mount):
    a = new_mount({**OPTIONS, "node": "a", "evict": "off"})
    first = a.status()["capacity"]
    assert first["physical_bytes"] < first["claim_bytes"] < CAPACITY // 2, first
    assert first["limit_bytes"] == CAPACITY
    assert until_full(a, 0) * CHUNK > CAPACITY * 8 // 10
    df = os.statvfs(a.path)
    assert df.f_blocks * df.f_frsize == CAPACITY
    assert df.f_bavail * df.f_frsize < CHUNK * 3


@pytest.mark.parametrize("stored", [4, 40])
def test_a_successor_with_another_name_has_what_a_killed_one_did_not_use(new_mount, stored):
    """As where host names are node names, and a container gets another one with each start."""
    a = new_mount({**OPTIONS, "node": "a", "evict": "off"})
    store(a, 0, stored)
    a.drain()
    a.kill()
    b = new_mount({**OPTIONS, "node": "b", "evict": "off"}, volume=a.volume)
    with Samples(a.volume) as samples:
        more = until_full(b, 1000)
    assert (stored + more) * CHUNK > CAPACITY * 8 // 10, b.status()["capacity"]
    assert samples.most <= CAPACITY
    assert all(get(b, number) for number in range(1000, 1000 + more))


def test_a_node_that_is_stopped_keeps_what_it_claims_and_goes_on_with_it(nodes):
    a, b = nodes
    with Samples(a.volume) as samples:
        store(a, 0, 16)
        os.kill(a.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: sees(b, "a", "silent"), SOON, "b misses a")
            store(b, 10_000, 2 * CAPACITY // CHUNK)
        finally:
            os.kill(a.pid, signal.SIGCONT)
        in_threads(lambda: store(a, 20_000, CAPACITY // CHUNK), lambda: store(b, 30_000, CAPACITY // CHUNK))
    assert samples.most <= CAPACITY
    for mount in nodes:
        assert mount.status()["errors"]["no_space"] == 0
    assert False not in {get(mount, number) for mount in nodes for number in range(20_000, 20_128)}


def set_capacity(mount, size):
    os.setxattr(mount.path, "user.kvcachefs.option.capacity", size)


def test_a_capacity_that_is_lowered_is_not_passed_again(nodes):
    """What both had claimed under the old one is not written into."""
    a, b = nodes
    ended = threading.Event()

    def write(mount, first):
        number = first
        while not ended.is_set():
            put(mount, number)
            number += 1

    def lower():
        try:
            time.sleep(4)
            for mount in nodes:
                set_capacity(mount, b"32M")
            wait_until(lambda: allocated_bytes(a.volume) <= CAPACITY // 2, SOON, "what is too much went")
            with Samples(a.volume) as samples:
                time.sleep(10)
            assert samples.most <= CAPACITY // 2
            assert samples.most > CAPACITY // 4
        finally:
            ended.set()

    in_threads(lower, *(lambda mount=mount, index=index: write(mount, 100_000 * index) for index, mount in enumerate((a, a, b, b))))
    for mount in nodes:
        assert mount.status()["errors"]["no_space"] == 0


def test_calls_that_wait_on_a_node_which_is_stopped_go_on_with_it(nodes):
    """For longer than any of them would wait for room."""
    a, b = nodes
    ended = threading.Event()

    def write(mount, first):
        number = first
        while not ended.is_set():
            put(mount, number)
            number += 1

    def stop():
        try:
            time.sleep(4)
            for _ in range(2):
                os.kill(a.pid, signal.SIGSTOP)
                time.sleep(25)
                os.kill(a.pid, signal.SIGCONT)
                time.sleep(4)
        finally:
            ended.set()
            os.kill(a.pid, signal.SIGCONT)

    in_threads(stop, *(lambda mount=mount, index=index: write(mount, 100_000 * index) for index, mount in enumerate((a, a, a, a, a, a, b, b))))
    for mount in nodes:
        assert mount.status()["errors"]["no_space"] == 0


def test_who_evicts_nothing_leaves_their_part_to_those_who_do(new_mount):
    a = new_mount({**OPTIONS, "node": "a"})
    store(a, 0, 2 * CAPACITY // CHUNK)
    b = new_mount({**OPTIONS, "node": "b", "evict": "off"}, volume=a.volume)
    with Samples(a.volume) as samples:
        for first in range(10_000, 15_000, 1000):
            until_full(b, first)
            store(a, 100_000 + first, CAPACITY // CHUNK)
    assert samples.most <= CAPACITY
    a.drain()  # what waits in memory for the place of what was evicted for it is part of what it has, but not yet on the volume
    assert CAPACITY // 4 < physical(b) <= CAPACITY * 6 // 10
    assert physical(a) >= CAPACITY * 3 // 10
    assert a.status()["errors"]["no_space"] == 0


def test_what_is_removed_on_a_full_volume_is_room_for_as_much_again(new_mount):
    """Also where nothing else is evicted, the other node waits for room as well, and the records of both take a little."""
    a = new_mount({**OPTIONS, "node": "a", "evict": "off"})
    b = new_mount({**OPTIONS, "node": "b", "evict": "off"}, volume=a.volume)
    with Samples(a.volume) as samples:
        until_full(b, 1000)
        for number in range(16):
            until_full(a, 1_000_000 + 1000 * number)
            os.unlink(os.path.join(b.path, name_of(1000 + number)))
            put(b, 2000 + number)
    assert samples.most <= CAPACITY
    assert all(get(b, 2000 + number) for number in range(16))


def test_nobody_waits_for_long_for_a_node_that_is_stopped(nodes):
    """What it has is older than all else, and it does not read either that chunks of others went."""
    a, b = nodes
    store(a, 0, 3 * CAPACITY // CHUNK // 2)
    store(b, 10_000, 20)
    os.kill(a.pid, signal.SIGSTOP)
    try:
        store(b, 20_000, CAPACITY // CHUNK)
    finally:
        os.kill(a.pid, signal.SIGCONT)
    assert b.status()["errors"]["no_space"] == 0
    assert b.status()["capacity"]["room_wait_max_ms"] < LONGEST_WAIT_MS


def test_who_comes_to_a_full_volume_whose_chunks_are_all_leased_waits_for_them(new_mount):
    leased = {**OPTIONS, "lease_ms": "5000"}
    a = new_mount({**leased, "node": "a"})
    store(a, 0, 3 * CAPACITY // CHUNK)
    for number in range(3 * CAPACITY // CHUNK):
        get(a, number)
    b = new_mount({**leased, "node": "b"}, volume=a.volume)
    for number in range(10_000, 10_004):  # each while it is the last: where the other is slow, it goes for the next
        put(b, number)
        assert get(b, number)
    assert b.status()["errors"]["no_space"] == 0


def test_leases_that_outlast_all_patience_are_broken_for_who_comes(new_mount):
    """Not before the newcomer had to take of its own; but it has more in the end than what was left to it."""
    leased = {**OPTIONS, "lease_ms": "120000"}
    a = new_mount({**leased, "node": "a"})
    store(a, 0, 3 * CAPACITY // CHUNK)
    for number in range(3 * CAPACITY // CHUNK):
        get(a, number)
    b = new_mount({**leased, "node": "b"}, volume=a.volume)
    store(b, 10_000, 40)
    assert b.status()["errors"]["no_space"] == 0
    stored = 40
    while (has := sum(1 for number in range(10_000, 10_000 + stored) if get(b, number)) * CHUNK) <= MIB and stored < 400:
        store(b, 10_000 + stored, 20)  # the others give some of theirs after three seconds, on a machine that has the time
        stored += 20
    assert has > MIB, "one chunk is all it has otherwise"
    assert b.status()["errors"]["no_space"] == 0


def test_who_comes_gets_room_of_leased_chunks_beside_a_node_that_is_stopped(new_mount):
    """What the full one evicts for the newcomer is held for the stopped one: not for longer than the newcomer's calls wait."""
    leased = {**OPTIONS, "lease_ms": "120000"}
    a = new_mount({**leased, "node": "a"})
    store(a, 0, 3 * CAPACITY // CHUNK)
    b = new_mount({**leased, "node": "b"}, volume=a.volume)
    store(b, 10_000, 10)
    wait_until(lambda: sees(a, "b", "live"), SOON, "a knows b")
    for number in range(3 * CAPACITY // CHUNK):
        get(a, number)
    os.kill(b.pid, signal.SIGSTOP)
    try:
        c = new_mount({**leased, "node": "c"}, volume=a.volume)
        stored, has = 0, 0
        while has <= 3 * MIB and stored < 200:  # a slow machine takes more than one round of it
            store(c, 20_000 + stored, 20)
            stored += 20
            has = sum(1 for number in range(20_000, 20_000 + stored) if get(c, number)) * CHUNK
        assert c.status()["errors"]["no_space"] == 0
        assert has > 3 * MIB, "two or three chunks are all it has otherwise"
    finally:
        os.kill(b.pid, signal.SIGCONT)


def test_who_follows_reads_on_beside_a_node_that_does_not(new_mount):
    """The writer gives back what the stopped one has not read of; what the other reads is kept until that has heard."""
    writer = new_mount({**OPTIONS, "node": "a"})
    reader = new_mount({**OPTIONS, "node": "b"}, volume=writer.volume)
    stopped = new_mount({**OPTIONS, "node": "c"}, volume=writer.volume)
    wait_until(lambda: all(sees(writer, node, "live") for node in "bc") and sees(reader, "c", "live"), SOON, "all know each other")
    store(writer, 0, CAPACITY // CHUNK)
    os.kill(stopped.pid, signal.SIGSTOP)
    ended = threading.Event()
    newest, failed, found = [0], [], []

    def write():
        """For half a minute, and until something was given back beside the stopped one."""
        begun, number = time.monotonic(), 1000
        try:
            while time.monotonic() < begun + 30 or (number <= 1001 + 2 * CAPACITY // CHUNK and time.monotonic() < begun + 5 * SOON):
                put(writer, number)
                newest[0] = number
                number += 1
        finally:
            ended.set()

    def read():
        while not ended.is_set():
            for number in range(max(1000, newest[0] - 100), newest[0]):
                try:
                    with open(os.path.join(reader.path, name_of(number)), "rb", buffering=0) as file:
                        found.append(file.read(2 * CHUNK) == payload(f"shared/{number % 64}", CHUNK))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    failed.append((number, error.errno))

    try:
        in_threads(write, read)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    writer.wait_for_log("waited 10 s for node c to follow")
    assert newest[0] > 1000 + 2 * CAPACITY // CHUNK, "nothing was given back beside it"
    assert found and all(found)
    assert not failed, failed


@pytest.mark.parametrize("lease_ms", [0, 500])
def test_what_the_others_evicted_while_a_node_stood_still_is_absent_there(new_mount, lease_ms):
    """Also for calls that came meanwhile, which are answered first when it goes on."""
    a, b = two_nodes(new_mount, {**OPTIONS, "lease_ms": lease_ms})
    stored = CAPACITY // 2 // CHUNK
    store(a, 0, stored)
    a.drain()
    order(b.path, "refresh")
    assert len(os.listdir(b.path)) >= stored
    stop(b)  # what was opened before may be lost
    answers = []

    def read(first):
        for number in range(first, stored, 8):
            try:
                with open(os.path.join(b.path, name_of(number)), "rb", buffering=0) as file:
                    answers.append(file.read(2 * CHUNK) == payload(f"shared/{number % 64}", CHUNK))
            except OSError as error:
                answers.append(error.errno)

    def evict():
        try:
            store(a, 10_000, 3 * CAPACITY // CHUNK)
        finally:
            os.kill(b.pid, signal.SIGCONT)

    in_threads(evict, *(lambda first=first: read(first) for first in range(8)))
    assert len(answers) == stored
    assert set(answers) <= {True, errno.ENOENT}, answers
    assert b.status()["errors"]["checksum"] == 0


def test_what_a_node_was_told_of_is_there_when_it_is_opened_whatever_the_other_evicts(new_mount):
    """Who evicts has not heard yet that it is used elsewhere: that takes seconds."""
    options = {**OPTIONS, "capacity": "256M", "lease_ms": "5000", "policy": "lru"}
    a = new_mount({**options, "node": "a"})
    b = new_mount({**options, "node": "b"}, volume=a.volume)
    wait_until(lambda: sees(a, "b", "live") and sees(b, "a", "live"), SOON, "both know each other")

    def put_alone(number):
        """What one thread stores would be taken for a chain, and go from its end."""
        in_threads(lambda: put(a, number))

    for first in range(256 * MIB // CHUNK):
        put_alone(first)
    ended = threading.Event()
    missed, late, wrong, evicted, opened = [], [], [], [], []

    def write():
        number = 256 * MIB // CHUNK
        while not ended.wait(0.02):
            put_alone(number)
            number += 1

    def load(number, told):
        time.sleep(max(0, told + random.uniform(0.5, 3) - time.monotonic()))
        path = os.path.join(b.path, name_of(number))
        try:
            with open(path, "rb", buffering=0) as file:
                (opened if file.read(2 * CHUNK) == payload(f"shared/{number % 64}", CHUNK) else wrong).append(number)
        except OSError as error:
            after_s = time.monotonic() - told
            (missed if after_s < 5 else late).append((number, error.errno, after_s))  # the lease is over then: this thread had no turn
        if not os.path.exists(os.path.join(a.path, name_of(number))):
            evicted.append(number)

    def probe():
        """What is oldest of what is there, each once: it goes in a second or so."""
        loads = []
        number = 0
        begun = time.monotonic()
        try:
            while time.monotonic() < begun + 35 or (len(set(evicted)) < 10 and time.monotonic() < begun + 4 * SOON):
                told = time.monotonic()
                if not os.path.exists(os.path.join(b.path, name_of(number))):
                    number += 1
                    time.sleep(0.002)  # not faster than the other stores
                    continue
                loads.append(threading.Thread(target=load, args=(number, told)))
                loads[-1].start()
                number += random.randrange(1, 5)
                time.sleep(0.4)  # 16 MiB of leases are given at a time
        finally:
            for each in loads:
                each.join()
            ended.set()

    with Samples(a.volume) as samples:
        in_threads(write, probe)
    assert not missed, (missed, len(opened), len(evicted))
    assert not wrong
    assert len(set(evicted)) >= 10, (len(opened), len(evicted), late, "it was not tried")
    assert samples.most <= 256 * MIB
    for mount in (a, b):
        assert mount.status()["errors"]["no_space"] == 0


def test_leases_of_another_node_hold_no_writer_up(new_mount):
    """However long they are, and whatever they are of: they keep a part of the capacity."""
    a = new_mount({**OPTIONS, "node": "a"})
    b = new_mount({**OPTIONS, "node": "b", "lease_ms": "600000"}, volume=a.volume)
    wait_until(lambda: sees(a, "b", "live") and sees(b, "a", "live"), SOON, "both know each other")
    count = 4 * CAPACITY // CHUNK
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            for name in os.listdir(b.path):
                os.path.exists(os.path.join(b.path, name))
            time.sleep(0.3)

    def write():
        try:
            store(a, 0, count)
        finally:
            ended.set()

    with Samples(a.volume) as samples:
        in_threads(write, ask)
    assert samples.most <= CAPACITY
    assert a.status()["errors"]["no_space"] == 0
    assert a.status()["capacity"]["room_wait_max_ms"] < LONGEST_WAIT_MS
    only_here = []

    def is_a_part():
        """What was evicted last is no lease before b has read that it went."""
        order(b.path, "refresh")
        only_here[:] = [number for number in range(count) if get(b, number) and not get(a, number)]
        return len(only_here) * CHUNK <= CAPACITY // 16

    wait_until(is_a_part, SOON, "the leases keep a part of the capacity")
    assert MIB <= len(only_here) * CHUNK, len(only_here)
    assert False not in {get(b, number) for number in only_here}


def test_nodes_that_come_and_go_do_not_fill_a_volume(new_mount):
    volume, pods = None, [f"pod{index}" for index in range(56)]
    for name in pods:
        pod = new_mount({**OPTIONS, "evict": "off", "node": name}, **({"volume": volume} if volume else {}))
        volume = pod.volume
        put(pod, pods.index(name))
        pod.stop()
    # A 256th of the capacity for what it had read of others, and a quarter of a MiB for the rest.
    assert allocated_bytes(volume) <= len(pods) * (CHUNK + CAPACITY // 256 + 256 * KIB) + MIB
    last = new_mount({**OPTIONS, "evict": "off", "node": "last"}, volume=volume)
    with Samples(volume) as samples:
        store(last, len(pods), 16)
        wait_until(lambda: all(get(last, number) for number in range(len(pods) + 16)), SOON, "all is seen")
    assert samples.most <= CAPACITY
    # What a command does for one of them takes nothing that stays, but for the epoch in which it did that: HEAD, ACKS, a journal.
    last.stop()
    before = allocated_bytes(volume)
    for name in pods[-4:]:
        assert run_command("gc", volume, "--node", name).returncode == 0
    assert allocated_bytes(volume) <= before + 4 * 128 * KIB
