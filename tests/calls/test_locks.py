"""Locks exclude: whichever call takes them, however the lock file was opened, whatever nodeids and versions the driver has for it."""

import contextlib
import errno
import fcntl
import os
import signal
import sqlite3
import struct
import subprocess
import threading
import time

import pytest

from kvc_data import payload
from kvc_env import MIB
from kvc_mount import SOON, wait_until
from kvc_process import Child, Gate, in_process, in_processes

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
READ, WRITE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


def record(fd, command, mode, start=0, length=0):
    """fcntl with a struct flock; what it became, as (mode, start, length, pid)."""
    answer = fcntl.fcntl(fd, command, struct.pack("hhqqi4x", mode, os.SEEK_SET, start, length, 0))
    mode, _, start, length, pid = struct.unpack("hhqqi4x", answer)
    return mode, start, length, pid


def refused(call, *arguments):
    """Whether it is answered that another holds the lock."""
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EACCES), error
        return True
    return False


LOCKS = {
    "flock": (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX), lambda fd: fcntl.flock(fd, fcntl.LOCK_UN)),
    "lockf": (lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX), lambda fd: fcntl.lockf(fd, fcntl.LOCK_UN)),
    "ofd": (lambda fd: record(fd, F_OFD_SETLKW, WRITE), lambda fd: record(fd, F_OFD_SETLK, NONE)),
}
OPENS = {
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "filelock": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "append": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "r+": os.O_RDWR | os.O_CREAT,
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("how", OPENS)
@pytest.mark.parametrize("name", ["x.lock", "x.tmp"])
def test_one_at_a_time(root, lock, how, name):
    """Each counts up what it alone may change; one write before the lock is dropped, or none, and by unlock or by close alone."""
    path, counter = root.join(name), root.join("counter")
    take, give = LOCKS[lock]
    with open(counter, "wb") as file:
        file.write(b"%08d" % 0)
    processes, rounds = 5, 8

    def work(number):
        for turn in range(rounds):
            fd = os.open(path, OPENS[how], 0o644)
            take(fd)
            if (turn + number) % 2:
                os.write(fd, b"%d\n" % os.getpid())
            with open(counter, "rb", buffering=0) as file:
                count = int(file.read())
            time.sleep(0.001)
            with open(counter, "r+b", buffering=0) as file:
                file.write(b"%08d" % (count + 1))
            if turn % 2:
                give(fd)
            os.close(fd)

    in_processes([(work, number) for number in range(processes)])
    with open(counter, "rb") as file:
        assert int(file.read()) == processes * rounds


@pytest.mark.parametrize("name", ["daemon.pid", "plain", "build.log"])
def test_a_truncating_open_opens_the_same_file(root, name):
    """Two have it open at once, neither has written: one file, as everywhere, and what one writes the other reads."""
    path = root.join(name)
    with Gate(2) as first_open, Gate(2) as both_open, Gate(2) as written:

        def first():
            fd = os.open(path, OPENS["filelock"], 0o644)
            os.write(fd, b"first")
            first_open.wait()
            both_open.wait()
            written.wait()
            assert os.pread(fd, 100, 0) == b"second"
            return os.fstat(fd).st_ino

        def second():
            first_open.wait()
            fd = os.open(path, OPENS["filelock"], 0o644)
            both_open.wait()
            os.write(fd, b"second")
            written.wait()
            return os.fstat(fd).st_ino

        children = [Child(first), Child(second)]
        assert children[0].result() == children[1].result()


def test_two_versions_of_a_temporary_name_have_one_lock(root):
    path = root.join("c.tmp")
    with Gate(2) as first_writes, Gate(2) as second_refused, Gate(2) as first_closed:

        def first():
            fd = os.open(path, OPENS["filelock"], 0o644)
            os.write(fd, b"first")
            first_writes.wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
            second_refused.wait()
            os.close(fd)
            first_closed.wait()

        def second():
            fd = os.open(path, OPENS["filelock"], 0o644)
            os.write(fd, b"second")

            def is_refused():
                if refused(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
                    return True
                fcntl.flock(fd, fcntl.LOCK_UN)  # it came before the first, which must not wait for it
                return False

            wait_until(is_refused, SOON, "the first has its lock")
            second_refused.wait()
            first_closed.wait()
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def second_after_the_first():
            first_writes.wait()
            second()

        in_processes([(first,), (second_after_the_first,)])


def test_a_close_gives_the_lock_to_who_does_not_wait(root):
    """Nobody unlocks: the end of the process does, before it is waited for."""
    path = root.join("x.lock")
    for turn in range(60):
        done = subprocess.run(["flock", "-n", "-E", "75", path, "true"], check=False)
        assert done.returncode == 0, f"turn {turn}: the lock of a process that has ended is still held"

    def take_and_end():
        fd = os.open(path, os.O_RDWR)
        record(fd, F_OFD_SETLK, WRITE, 10, 5)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    for _ in range(40):
        in_process(take_and_end)


def test_who_does_not_wait_is_refused_while_it_is_held(root):
    path = root.join("x.lock")
    with open(path, "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        done = subprocess.run(["flock", "-n", "-E", "75", path, "true"], check=False)
        assert done.returncode == 75
        fcntl.flock(holder, fcntl.LOCK_SH)
        assert subprocess.run(["flock", "-s", "-n", "-E", "75", path, "true"], check=False).returncode == 0
        assert subprocess.run(["flock", "-x", "-n", "-E", "75", path, "true"], check=False).returncode == 75


def test_upgrade_and_downgrade(root):
    path = root.join("x.lock")
    one, two = open(path, "w"), open(path, "r")
    fcntl.flock(one, fcntl.LOCK_SH)
    fcntl.flock(two, fcntl.LOCK_SH)
    assert refused(fcntl.flock, one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(two, fcntl.LOCK_UN)
    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert refused(fcntl.flock, two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(one, fcntl.LOCK_SH)
    fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    one.close()
    two.close()


def test_a_lock_is_held_across_fork(root):
    """The child has the same open file: its end does not unlock; its unlock does. A record lock is the parent's alone."""
    path = root.join("x.lock")
    fd, other = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    in_process(lambda: None)
    assert refused(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    in_process(fcntl.flock, fd, fcntl.LOCK_UN)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    assert in_process(refused, fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    os.close(other)


def test_any_close_gives_up_the_record_locks_of_the_process(root):
    path = root.join("x.lock")
    with open(path, "w") as file:
        file.write("x")
    fd = os.open(path, os.O_RDWR)
    record(fd, fcntl.F_SETLK, WRITE, 0, 10)
    assert in_process(lambda: record(os.open(path, os.O_RDWR), fcntl.F_GETLK, READ, 5, 1))[3] == os.getpid()
    os.close(os.open(path, os.O_RDONLY))
    assert in_process(lambda: record(os.open(path, os.O_RDWR), fcntl.F_GETLK, READ, 5, 1))[0] == NONE
    record(fd, F_OFD_SETLK, WRITE, 0, 10)
    os.close(os.open(path, os.O_RDONLY))
    assert in_process(lambda: record(os.open(path, os.O_RDWR), fcntl.F_GETLK, READ, 5, 1))[0] == WRITE
    os.close(fd)


def test_ranges(root):
    path = root.join("x.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    record(fd, fcntl.F_SETLK, WRITE, 0, 100)
    record(fd, fcntl.F_SETLK, NONE, 40, 20)
    record(fd, fcntl.F_SETLK, READ, 80, 0)

    def look():
        other = os.open(path, os.O_RDWR)
        return [record(other, fcntl.F_GETLK, WRITE, start, length)[:3] for start, length in ((0, 0), (40, 20), (60, 1), (1000, 1))]

    assert in_process(look) == [(WRITE, 0, 40), (NONE, 40, 20), (WRITE, 60, 20), (READ, 80, 0)]
    os.close(fd)


def test_waiting_ends_by_a_signal_and_by_death(root):
    path = root.join("x.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    record(fd, fcntl.F_SETLK, WRITE)

    class Alarm(Exception):
        pass

    def wait_with_alarm(take):
        def ring(*_):
            raise Alarm

        signal.signal(signal.SIGALRM, ring)
        other = os.open(path, os.O_RDWR)
        with pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            take(other)

    in_process(wait_with_alarm, LOCKS["flock"][0])
    in_process(wait_with_alarm, LOCKS["lockf"][0])
    killed = Child(lambda: fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX))
    time.sleep(0.2)  # most likely it waits by then
    os.kill(killed.pid, signal.SIGKILL)
    with pytest.raises(AssertionError):
        killed.result()
    waits = Child(lambda: fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX))  # has `fd`, too: its close would not unlock
    fcntl.flock(fd, fcntl.LOCK_UN)
    waits.result()
    os.close(fd)


def test_deadlock_is_told(root):
    path = root.join("x.lock")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
    with Gate(2) as both_locked:

        def work(mine, other):
            fd = os.open(path, os.O_RDWR)
            record(fd, fcntl.F_SETLK, WRITE, mine, 1)
            both_locked.wait()
            try:
                record(fd, fcntl.F_SETLKW, WRITE, other, 1)
            except OSError as error:
                return error.errno
            return 0

        children = [Child(work, 0, 1), Child(work, 1, 0)]
        assert sorted(child.result() for child in children) == [0, errno.EDEADLK]


@pytest.mark.parametrize("size", [0, 64 << 10, 9 * MIB], ids=["empty", "64K", "9M"])
@pytest.mark.parametrize("settled", [False, True], ids=["fresh", "settled"])
def test_a_reader_and_a_later_writer_exclude_each_other(root, size, settled):
    """Whatever nodeids a large chunk has, one for its readers and one for its writers."""
    shared, alone = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB
    pairs = [
        (os.O_RDONLY, lambda fd: fcntl.flock(fd, shared), os.O_RDWR, lambda fd: fcntl.flock(fd, alone)),
        (os.O_RDONLY, lambda fd: fcntl.flock(fd, alone), os.O_WRONLY, lambda fd: fcntl.flock(fd, alone)),
        (os.O_RDWR, lambda fd: fcntl.flock(fd, alone), os.O_RDONLY, lambda fd: fcntl.flock(fd, shared)),
        (os.O_RDONLY, lambda fd: record(fd, fcntl.F_SETLK, READ), os.O_RDWR, lambda fd: record(fd, fcntl.F_SETLK, WRITE)),
        (os.O_RDONLY, lambda fd: record(fd, F_OFD_SETLK, READ), os.O_RDWR, lambda fd: record(fd, F_OFD_SETLK, WRITE)),
    ]
    for number, pair in enumerate(pairs):
        with open(root.join(f"{number}.tmp"), "wb") as file:
            file.write(payload(str(number), size))
        os.rename(root.join(f"{number}.tmp"), root.join(str(number)))
    if settled:
        root.remount()
    for number, (flags, take, other_flags, other_take) in enumerate(pairs):
        path = root.join(str(number))
        fd = os.open(path, flags)
        if flags == os.O_RDONLY:
            os.pread(fd, 10, 0)
        take(fd)

        def second():
            other = os.open(path, other_flags)
            if not refused(other_take, other):
                return "granted"
            return "refused"

        assert in_process(second) == "refused", number
        os.close(fd)
        assert in_process(second) == "granted", number


def test_exclusive_creation_and_rename_of_a_lock_file(root):
    """As git changes its index: create x.lock for itself alone, write it, rename it to x."""
    target, counted = root.join("index"), 0
    with open(target, "w") as file:
        file.write("0")
    processes, rounds = 4, 12

    def work():
        for _ in range(rounds):
            while True:
                try:
                    fd = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                    break
                except FileExistsError:
                    time.sleep(0.0005)
            with open(target) as file:
                count = int(file.read())
            os.write(fd, b"%d" % (count + 1))
            os.close(fd)
            os.rename(f"{target}.lock", target)

    in_processes([(work,)] * processes)
    with open(target) as file:
        counted = int(file.read())
    assert counted == processes * rounds


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_by_many_processes(root, journal):
    path = root.join("x.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute(f"pragma journal_mode={journal}")
        made.execute("create table t(n, filler)")
        made.execute("insert into t values(0, ?)", ("x" * 2000,))
    processes, rounds = 4, 10

    def work():
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
            for _ in range(rounds):
                connection.execute("begin immediate")
                (count,) = connection.execute("select n from t").fetchone()
                connection.execute("update t set n=?", (count + 1,))
                connection.execute("commit")

    in_processes([(work,)] * processes)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select n from t").fetchone() == (processes * rounds,)
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


def test_threads_wait_without_holding_up_the_mount(root):
    """More of them than the driver has threads: they hold none."""
    path = root.join("x.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    got = []

    def wait():
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        got.append(other)
        os.close(other)

    threads = [threading.Thread(target=wait) for _ in range(64)]
    for thread in threads:
        thread.start()
    for index in range(20):
        with open(root.join(f"file{index}"), "wb") as file:
            file.write(b"x")
    assert got == []
    os.close(fd)
    for thread in threads:
        thread.join()
    assert len(got) == 64
