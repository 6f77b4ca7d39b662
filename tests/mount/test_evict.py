"""The mount as a cache: a full volume goes on taking chunks, what must stay stays, and what went is gone for everybody at once."""

import errno
import itertools
import mmap
import os
import re
import subprocess
import threading
import time

import pytest

import kvc_env
from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until
from kvc_volume import Samples

pytestmark = pytest.mark.needs_daemon

CAPACITY = 64 * MIB
CHUNK = 512 * KIB
OPTIONS = {"capacity": "64M", "keep_free": "1M", "memory": "32M", "lease_ms": "0"}


def name_of(number):
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}.bin"


def put(directory, number, size=CHUNK):
    path = os.path.join(directory, name_of(number))
    with open(f"{path}.tmp{threading.get_ident()}", "xb", buffering=0) as file:
        file.write(payload(f"evict/{number % 64}", size))
    os.rename(f"{path}.tmp{threading.get_ident()}", path)


def get(directory, number):
    """None: absent; else whether it is right."""
    try:
        with open(os.path.join(directory, name_of(number)), "rb", buffering=0) as file:
            return file.read(2 * CHUNK) == payload(f"evict/{number % 64}", CHUNK)
    except FileNotFoundError:
        return None


def in_threads(count, work):
    failures = []

    def run(index):
        try:
            work(index)
        except BaseException as failure:  # pylint: disable=broad-exception-caught
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_four_writers_store_ten_times_the_capacity(new_mount):
    mount = new_mount(OPTIONS)
    count = 10 * CAPACITY // CHUNK
    with Samples(mount.volume) as samples:
        in_threads(4, lambda index: [put(mount.path, number) for number in range(index, count, 4)])
    status = mount.status()
    assert status["errors"]["no_space"] == 0
    assert status["evictions"]["objects"] > count // 2
    assert samples.most <= CAPACITY
    found = [get(mount.path, number) for number in range(count)]
    assert False not in found, "a chunk is not what was stored"
    assert found.count(True) * CHUNK >= CAPACITY // 2
    mount.remount()
    assert [get(mount.path, number) for number in range(count)].count(False) == 0
    put(mount.path, count)
    assert get(mount.path, count)


def test_readers_of_what_is_evicted_beside_them_see_no_wrong_byte(new_mount):
    mount = new_mount(OPTIONS)
    count, absent = 4 * CAPACITY // CHUNK, []

    def work(index):
        for number in range(index, count, 8):
            put(mount.path, number)
            for other in range(max(0, number - 160), number, 37):
                found = get(mount.path, other)
                assert found is not False, other
                absent.append(found is None)

    in_threads(8, work)
    assert any(absent) and not all(absent)


def test_what_went_is_gone_for_everybody_at_once(new_mount):
    mount = new_mount(OPTIONS)
    in_threads(80, lambda index: put(mount.path, index))

    def open_and_close(path):
        os.close(os.open(path, os.O_RDONLY))

    def found(call, path):
        try:
            call(path)
            return True
        except FileNotFoundError:
            return False

    def still_found(first):
        """Names that went and are found all the same: at most those of which the thread that tells the kernel has not told it yet."""
        with os.scandir(mount.path) as entries:  # with attributes, which the kernel keeps for a second
            known = {entry.name: entry.stat().st_size for entry in entries}
        assert len(known) > 40
        in_threads(60, lambda index: put(mount.path, first + index))
        mount.drain()
        time.sleep(0.05)
        gone = set(known) - set(os.listdir(mount.path))
        assert len(gone) > 10
        paths = [os.path.join(mount.path, name) for name in gone]
        return [path for path in paths if os.access(path, os.F_OK) or any(found(call, path) for call in (os.stat, open_and_close))]

    for round_number in range(1, 5):
        # Once more where that thread did not get its turn. Of a kernel that is told nothing some are found each time.
        assert not all(still_found(10_000 * round_number + 1000 * attempt) for attempt in range(5))


def test_what_was_probed_after_a_listing_is_there_when_it_is_opened(new_mount):
    mount = new_mount(OPTIONS)  # so that nothing is leased yet
    in_threads(100, lambda index: put(mount.path, index))
    mount.drain()
    time.sleep(1.1)  # past what the kernel remembers
    os.setxattr(mount.path, "user.kvcachefs.option.lease_ms", b"600000")
    with os.scandir(mount.path) as entries:
        names = [entry.name for entry in entries if entry.stat().st_size > 0]
    told = [name for name in names[:20] if os.path.exists(os.path.join(mount.path, name))]
    in_threads(40, lambda index: put(mount.path, 1000 + index))
    gone = []
    for name in told:
        try:
            os.close(os.open(os.path.join(mount.path, name), os.O_RDONLY))
        except FileNotFoundError:
            gone.append(name)
    assert len(told) == 20
    assert len(gone) <= mount.status()["evictions"]["leases_broken"], "gone within the lease"


def test_what_is_written_is_there_when_it_is_renamed(new_mount):
    mount = new_mount(OPTIONS)
    names = [f"{number:032x}.bin.tmp{number:08x}" for number in range(8)]
    for name in names:
        with open(os.path.join(mount.path, name), "wb") as file:
            file.write(payload("evict/1", CHUNK))
    mount.drain()
    for number in range(3 * CAPACITY // CHUNK):  # in place: nothing that is there was renamed
        with open(os.path.join(mount.path, name_of(number)), "wb") as file:
            file.write(payload("evict/2", CHUNK))
    for name in names:
        os.rename(os.path.join(mount.path, name), os.path.join(mount.path, name.partition(".tmp")[0]))


def test_pins(new_mount):
    mount = new_mount(OPTIONS)
    kept, below = os.path.join(mount.path, "kept"), os.path.join(mount.path, "kept", "below")
    os.makedirs(below)
    put(mount.path, 1)
    put(mount.path, 2)
    put(below, 3)
    path = os.path.join(mount.path, name_of(1))
    os.setxattr(path, "user.kvcachefs.pin", b"1")
    os.setxattr(kept, "user.kvcachefs.pin", b"1")
    put(below, 4)
    assert os.getxattr(path, "user.kvcachefs.pin") == b"1"
    assert os.getxattr(os.path.join(below, name_of(4)), "user.kvcachefs.pin") == b"inherited"
    with pytest.raises(OSError) as refused:
        os.getxattr(os.path.join(mount.path, name_of(2)), "user.kvcachefs.pin")
    assert refused.value.errno == errno.ENODATA
    assert os.listxattr(path) == []  # copies carry no pin along
    wait_until(lambda: mount.status()["pins"] == {"objects": 3, "bytes": 3 * CHUNK}, SOON, "three are pinned")
    for number in range(100, 100 + 3 * CAPACITY // CHUNK):
        put(mount.path, number)
    mount.remount()
    for number in range(1000, 1000 + 2 * CAPACITY // CHUNK):
        put(mount.path, number)
    assert get(mount.path, 1) and get(below, 3) and get(below, 4)
    assert get(mount.path, 2) is None
    os.removexattr(path, "user.kvcachefs.pin")
    for number in range(2000, 2000 + 2 * CAPACITY // CHUNK):
        put(mount.path, number)
    assert get(mount.path, 1) is None
    with pytest.raises(OSError) as refused:
        os.setxattr(mount.path, "user.kvcachefs.pin", b"1")
    assert refused.value.errno == errno.ENOSPC
    mount.wait_for_log("half of the capacity")


def test_a_chunk_that_is_written_by_one_direct_write_is_one(new_mount):
    """The kernel sends its parts side by side, and the daemon waits for memory between them."""
    mount = new_mount({"capacity": "600M", "memory": "16M"})
    body = mmap.mmap(-1, 8 * MIB)  # aligned

    def write(number):
        path = os.path.join(mount.path, name_of(number))
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        assert os.write(fd, body) == 8 * MIB
        os.close(fd)
        return os.getxattr(path, "user.kvcachefs.kept_by").decode()

    kept_by = []
    in_threads(6, lambda index: kept_by.extend(write(number) for number in range(index, 48, 6)))
    assert len(kept_by) == 48
    assert not [why for why in kept_by if why.startswith("changed")]


def test_status_tells_whether_the_cache_is_large_enough(new_mount):
    mount = new_mount(OPTIONS)
    count = 3 * CAPACITY // CHUNK
    put(mount.path, 0)
    assert "large enough  yes: nothing was evicted" in run_command("status", mount.path).stdout
    in_threads(4, lambda index: [put(mount.path, number) for number in range(index, count, 4)])
    before = mount.status()["probes"]
    assert before["before_store"] + before["miss"] >= 2 * count  # a lookup whose put was under way when the counts were taken is a miss
    assert before["miss"] < count // 20, "the lookups of a create and a rename are no probes"
    gone = [number for number in range(count) if not os.access(os.path.join(mount.path, name_of(number)), os.F_OK)]
    for number in range(20):
        assert not os.access(os.path.join(mount.path, name_of(10**6 + number)), os.F_OK)
    status = mount.status()
    probes, evictions = status["probes"], status["evictions"]
    assert len(gone) > count // 2
    assert probes["miss_evicted"] - before["miss_evicted"] >= 0.9 * len(gone)
    assert 20 <= probes["miss_never_seen"] - before["miss_never_seen"] <= 20 + 0.1 * len(gone)
    assert probes["miss"] == probes["miss_never_seen"] + probes["miss_evicted"] + probes["miss_quarantined"]
    assert 0 < probes["hit_1min_ratio"] < 0.5 < probes["miss_evicted_1min_ratio"] < 1
    for span in ("1h", "1d"):
        assert abs(probes[f"hit_{span}_ratio"] - probes["hit"] / (probes["hit"] + probes["miss"])) < 0.01
    for what in ("objects", "bytes"):
        assert evictions[what] > 0
        assert evictions[what] == sum(evictions[f"{why}_{what}"] for why in ("background", "direct", "lease_broken"))
        assert evictions[what] == sum(evictions[f"age_{age}_{what}"] for age in ("below_1min", "below_1h", "below_1d", "above_1d"))
    assert 0 <= evictions["coldest_age_s"] < 600
    capacity = status["capacity"]
    # Not the other way: what a call waited for may have been given back by a round in the background.
    assert capacity["room_waits"] > 0 or evictions["direct_objects"] + evictions["lease_broken_objects"] == 0
    assert capacity["room_wait_ms"] >= capacity["room_wait_max_ms"]
    with open(os.path.join(mount.path, ".kvcachefs", "metrics"), encoding="ascii") as file:
        metrics = dict(line.split() for line in file)
    assert int(metrics["kvcachefs_evictions_direct_bytes"]) == evictions["direct_bytes"]
    assert float(metrics["kvcachefs_probes_hit_1h_ratio"]) > 0
    text = run_command("status", mount.path).stdout
    assert "large enough  no: a larger one would have hit" in text, text


PINNED = 12  # of 16 files of 1 MiB; more than half of the smaller capacity


def put_and_pin(mount):
    paths = [os.path.join(mount.path, f"file{number}") for number in range(16)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(os.urandom(1 << 20))
    for path in paths[:PINNED]:
        os.setxattr(path, "user.kvcachefs.pin", b"1")
    mount.drain()
    return paths


def check_that_pins_hold(mount, paths):
    wait_until(lambda: mount.status()["pins"]["objects"] == PINNED, SOON, "all pins count")
    for number in range(30):
        try:
            with open(os.path.join(mount.path, f"new{number}"), "wb") as file:
                file.write(os.urandom(1 << 20))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    assert [path for path in paths[:PINNED] if not os.path.exists(path)] == []
    assert all(os.getxattr(path, "user.kvcachefs.kept_by") == b"pinned" for path in paths[:PINNED])
    mount.wait_for_log("12M is pinned, more than half of capacity=16M: raise capacity or unpin")
    assert mount.log_text().count("is pinned, more than half") == 1
    new = [name for name in os.listdir(mount.path) if name.startswith("new")]
    with pytest.raises(OSError) as refused:
        os.setxattr(os.path.join(mount.path, max(new)), "user.kvcachefs.pin", b"1")
    assert refused.value.errno == errno.ENOSPC


def test_pins_hold_in_a_smaller_capacity(new_mount):
    mount = new_mount({**OPTIONS, "capacity": "64M"})
    paths = put_and_pin(mount)
    mount.remount(capacity="16M")
    check_that_pins_hold(mount, paths)


def test_pins_hold_when_capacity_and_policy_are_changed(new_mount):
    mount = new_mount({**OPTIONS, "capacity": "64M"})
    paths = put_and_pin(mount)
    os.setxattr(mount.path, "user.kvcachefs.option.capacity", b"16M")
    mount.wait_for_log("is pinned, more than half")
    before = mount.log_text().count("is pinned, more than half")
    os.setxattr(mount.path, "user.kvcachefs.option.policy", b"lru")
    mount.wait_for_log("is pinned, more than half", before + 1)  # of the change of policy
    wait_until(lambda: mount.status()["pins"]["objects"] == PINNED, SOON, "all pins count")
    assert [path for path in paths[:PINNED] if not os.path.exists(path)] == []


def test_pins_are_limited_with_evict_off(new_mount):
    mount = new_mount({**OPTIONS, "capacity": "20M", "evict": "off"})
    paths = [os.path.join(mount.path, f"file{number}") for number in range(12)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(os.urandom(1 << 20))
    for path in paths[:10]:
        os.setxattr(path, "user.kvcachefs.pin", b"1")
    with pytest.raises(OSError) as refused:
        os.setxattr(paths[10], "user.kvcachefs.pin", b"1")
    assert refused.value.errno == errno.ENOSPC
    os.setxattr(mount.path, "user.kvcachefs.option.capacity", b"16M")
    os.setxattr(mount.path, "user.kvcachefs.option.evict", b"on")
    wait_until(lambda: mount.status()["pins"]["objects"] == 10, SOON, "all pins count")
    mount.wait_for_log("is pinned, more than half")


def test_a_file_tells_what_keeps_it(new_mount):
    mount = new_mount({**OPTIONS, "lease_ms": "60000"})
    for number in range(5):
        put(mount.path, number)
    mount.drain()
    path = [os.path.join(mount.path, name_of(number)) for number in range(5)]

    def kept_by(number):
        return os.getxattr(path[number], "user.kvcachefs.kept_by").decode()

    time.sleep(2.1)
    assert kept_by(0) == "nothing", "but for this look at it"
    with open(path[1], "rb"):
        assert kept_by(1) == "open"
    os.setxattr(path[2], "user.kvcachefs.pin", b"1")
    assert kept_by(2) == "pinned"
    with open(path[3], "rb") as file:
        file.read(1)
    wait_until(lambda: kept_by(3) == "leased", SOON, "the kernel tells of a close later")
    with open(path[4], "r+b") as file:
        file.write(b"x")
    wait_until(lambda: kept_by(4) in ("not settled", "changed in place"), SOON, "and of this one")
    text = run_command("info", path[0]).stdout
    assert "kept_by" in text and " ago; " in text, text


def test_how_a_file_is_written_tells_whether_it_is_a_chunk(new_mount):
    """Pages of a mapping are written when the kernel likes, some of them twice: that is no change of what was written."""
    mount = new_mount(OPTIONS)
    path = {name: os.path.join(mount.path, name) for name in ("mapped", "patched", "log")}
    with open(path["mapped"], "w+b") as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), MIB) as mapped:
            for at in (0, 4096, 10, MIB - 10, 20):
                mapped[at:at + 10] = b"0123456789"
                mapped.flush()
    with open(path["patched"], "wb") as file:
        file.write(payload("patched", MIB))
        file.seek(4)
        file.write(b"size")
    with open(path["log"], "ab") as file:
        file.write(b"line\n")
    mount.drain()
    kept_by = {name: os.getxattr(where, "user.kvcachefs.kept_by").decode() for name, where in path.items()}
    assert kept_by["patched"] == kept_by["log"] == "changed in part", kept_by
    assert not kept_by["mapped"].startswith("changed"), kept_by


def df_used_percent(path):
    text = subprocess.run(["df", "--output=pcent", path], capture_output=True, text=True, check=True).stdout
    return int(text.split()[-1].rstrip("%"))


def test_df_of_a_full_volume_can_leave_headroom_to_cleaners_that_watch_it(new_mount):
    mount = new_mount({**OPTIONS, "statfs": "headroom", "evict": "off"})
    number = 0
    while df_used_percent(mount.path) < 90:
        put(mount.path, number)
        number += 1
    mount.drain()
    os.setxattr(mount.path, "user.kvcachefs.option.evict", b"on")
    assert 69 <= df_used_percent(mount.path) <= 72
    os.setxattr(mount.path, "user.kvcachefs.option.statfs", b"exact")
    assert df_used_percent(mount.path) >= 80
    space = os.statvfs(mount.path)
    assert space.f_blocks * space.f_frsize == CAPACITY
    with pytest.raises(OSError):
        os.setxattr(mount.path, "user.kvcachefs.option.statfs", b"all")


def test_a_mount_that_refused_a_call_is_not_called_large_enough(new_mount):
    mount = new_mount({**OPTIONS, "evict": "off"})
    put(mount.path, 0)
    assert "large enough  not known: with evict=off" in run_command("status", mount.path).stdout
    with pytest.raises(OSError) as refused:
        for number in range(1, 2 * CAPACITY // CHUNK):
            put(mount.path, number)
    assert refused.value.errno == errno.ENOSPC
    text = run_command("status", mount.path).stdout
    assert re.search(r"large enough  no: \d+ calls found no space", text), text


def test_everything_open_is_refused_soon(new_mount):
    mount = new_mount(OPTIONS)
    files = []
    try:
        for number in range(2 * CAPACITY // CHUNK):
            put(mount.path, number)
            files.append(open(os.path.join(mount.path, name_of(number)), "rb"))  # pylint: disable=consider-using-with
        pytest.fail("twice the capacity was stored, all of it open")
    except OSError as error:
        assert error.errno == errno.ENOSPC
    assert mount.status()["capacity"]["room_wait_max_ms"] < SOON * kvc_env.SCALE * 1000
    for file in files:
        file.close()
    wait_until(lambda: mount.status()["objects"]["open_handles"] == 0, SOON, "all is closed")
    numbers = itertools.count(5000)

    def is_stored():
        try:
            put(mount.path, next(numbers))
            return True
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return False

    wait_until(is_stored, SOON, "what was closed makes room")


@pytest.mark.parametrize("round_number", range(3))
def test_killed_while_it_evicts(new_mount, round_number):
    """What was there and was not evicted is there and whole; nothing else comes or goes; and the mount does not hang."""
    mount = new_mount({**OPTIONS, "durability": "close"})
    stored, stop = [], threading.Event()

    def write(index):
        number = index
        while not stop.is_set():
            try:
                put(mount.path, number)
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO), error
                return
            stored.append(number)
            number += 4

    for number in range(20_000, 20_010):
        put(mount.path, number)
        os.setxattr(os.path.join(mount.path, name_of(number)), "user.kvcachefs.pin", b"1")
    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: mount.status()["evictions"]["objects"] > 50 * (round_number + 1), SOON, "eviction goes on")
    mount.kill()
    stop.set()
    for thread in threads:
        thread.join(SOON * kvc_env.SCALE)
        assert not thread.is_alive()
    mount.start()
    found = {number: get(mount.path, number) for number in range(max(stored) + 8)}
    assert False not in found.values()
    assert sum(bool(value) for value in found.values()) > CAPACITY // CHUNK // 2
    assert all(get(mount.path, number) for number in range(20_000, 20_010)), "pinned"
    for number in range(9000, 9060):
        put(mount.path, number)
    mount.stop()
    checked = run_command("fsck", mount.volume)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_options(new_mount):
    mount = new_mount({**OPTIONS, "policy": "s3fifo", "evict": "off"})
    number = 0
    with pytest.raises(OSError) as full:
        for number in range(2 * CAPACITY // CHUNK):
            put(mount.path, number)
    assert full.value.errno == errno.ENOSPC
    for policy in ("prefix", "lru", "fifo-reinsert", "s3fifo"):
        os.setxattr(mount.path, "user.kvcachefs.option.policy", policy.encode())
        os.setxattr(mount.path, "user.kvcachefs.option.evict", b"on")
        for other in range(CAPACITY // CHUNK):
            put(mount.path, 1000 + other)
            os.unlink(os.path.join(mount.path, name_of(1000 + other)))
        for other in range(2 * CAPACITY // CHUNK):
            number += 1
            put(mount.path, 100_000 + number)
    with pytest.raises(OSError):
        os.setxattr(mount.path, "user.kvcachefs.option.policy", b"random")
