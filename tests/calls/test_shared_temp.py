"""Many writers of one temp name: LMCache fs and MP fs, AIBrix. On a plain directory the second rename fails or a torn file is published."""

import concurrent.futures
import os
import random

import pytest

import kvc_env
from kvc_data import assert_bytes, payload
from kvc_process import Child, Gate, in_process, in_processes
from sequences import SHARED_TEMP_CLIENTS

MIB = kvc_env.MIB
RACE = pytest.mark.beyond_plain(unless="the writers happen not to meet")
CLIENTS = pytest.mark.parametrize("client", SHARED_TEMP_CLIENTS, ids=lambda client: client.name)

TRUNC = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def put_over(client, path, key, data):
    """The client's put, also where it would skip a name that exists: the race is between the check and the rename."""
    if client.name == "lmcache-mp-fs":
        final = client.path(path, key)
        client.put_always(final[: -len(".data")] + ".tmp", final, data)
    else:
        client.put(path, key, data)


def write_all(fd, data, step=256 << 10):
    for start in range(0, len(data), step):
        os.write(fd, data[start : start + step])


@RACE
@CLIENTS
def test_threads_of_one_process(client, root):
    data = payload("shared", 1 * MIB)

    def hammer():
        client.prepare(root.path)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for put in [pool.submit(put_over, client, root.path, "shared", data) for _ in range(64)]:
                put.result()  # every one must succeed

    in_process(hammer)
    root.check_everywhere(lambda: assert_bytes(client.get(root.path, "shared", len(data)), data, "shared"))


@RACE
@CLIENTS
def test_processes_with_a_reader_beside_them(client, root):
    data = payload("shared", 1 * MIB)
    in_process(put_over, client, root.path, "shared", data)

    def write():
        for _ in range(24):
            put_over(client, root.path, "shared", data)

    def read():
        for _ in range(60):
            assert_bytes(client.get(root.path, "shared", len(data)), data, "the target, while it is replaced")

    in_processes([(write,), (write,), (write,), (write,), (read,), (read,)])
    root.check_everywhere(lambda: assert_bytes(client.get(root.path, "shared", len(data)), data, "shared"))


@RACE
def test_different_contents_are_never_mixed(root):
    """Writers of different bytes (which clients with content hashes are not) still publish one version whole, never a mixture."""
    size = 1 * MIB
    versions = [payload("mixed", size, version) for version in range(6)]
    target, temp = root.join("target"), root.join("chunk.tmp")

    def write(version):
        chooser = random.Random(version)
        for _ in range(16):
            fd = os.open(temp, TRUNC, 0o644)
            write_all(fd, versions[version], chooser.choice([64 << 10, 256 << 10, size]))
            os.close(fd)
            os.rename(temp, target)

    def read():
        seen = 0
        while seen < 80:
            try:
                with open(target, "rb", buffering=0) as file:
                    body = file.readall()
            except FileNotFoundError:
                continue
            assert body in versions, "the target is no version that anybody wrote"
            seen += 1

    in_processes([(write, version) for version in range(6)] + [(read,)])

    def check_final():
        with open(target, "rb") as file:
            assert file.read() in versions

    root.check_everywhere(check_final)


def put_in_steps(temp, target, data, gates):
    """open, first half | second half, close | rename: `|` is where the given gate (or None) is passed."""
    fd = os.open(temp, TRUNC, 0o644)
    os.write(fd, data[: len(data) // 2])
    if gates[0]:
        gates[0].wait()
    os.write(fd, data[len(data) // 2 :])
    os.close(fd)
    if gates[1]:
        gates[1].wait()
    os.rename(temp, target)


@pytest.mark.beyond_plain
def test_second_writer_overtakes_the_first(root):
    """A is in the middle of its write; B opens the same temp with O_TRUNC, writes, closes and renames; A goes on and renames as well."""
    temp, target = root.join("c.tmp"), root.join("c.data")
    first, second = payload("a", 2 * MIB), payload("b", 2 * MIB)
    with Gate(2) as both_writing, Gate(2) as second_done:

        def slow():
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, first[:MIB])
            both_writing.wait()
            second_done.wait()
            with open(target, "rb") as file:
                assert_bytes(file.read(), second, "the target after the second writer's rename")
            os.write(fd, first[MIB:])
            os.close(fd)
            os.rename(temp, target)

        def fast():
            both_writing.wait()
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, second)
            os.close(fd)
            os.rename(temp, target)
            second_done.wait()

        in_processes([(slow,), (fast,)])
    assert not os.path.exists(temp)

    def check():
        with open(target, "rb") as file:
            assert_bytes(file.read(), first, "the target after both renames")

    root.check_everywhere(check)


@pytest.mark.beyond_plain
def test_each_process_renames_what_it_wrote(root):
    """Both have finished when the first renames, to different targets: each process gets its own version."""
    temp = root.join("c.tmp")
    bodies = [payload("p0", MIB), payload("p1", MIB), payload("p2", MIB)]
    with Gate(3) as all_writing, Gate(3) as all_finished:
        in_processes(
            [
                (put_in_steps, temp, root.join(f"target{index}"), body, (all_writing, all_finished))
                for index, body in enumerate(bodies)
            ]
        )

    def check():
        for index, body in enumerate(bodies):
            with open(root.join(f"target{index}"), "rb") as file:
                assert_bytes(file.read(), body, f"target{index}")

    assert not os.path.exists(temp)
    root.check_everywhere(check)


@pytest.mark.beyond_plain
def test_three_processes_rename_to_one_target(root):
    temp, target = root.join("c.tmp"), root.join("c.data")
    body = payload("same", MIB)
    for _ in range(10):
        with Gate(3) as all_writing, Gate(3) as all_finished:
            in_processes([(put_in_steps, temp, target, body, (all_writing, all_finished))] * 3)
        with open(target, "rb") as file:
            assert_bytes(file.read(), body, "target")
        assert not os.path.exists(temp), "the temp name stays after every writer has renamed it"


@pytest.mark.beyond_plain
def test_rename_from_another_thread_than_the_opener(root):
    """Thread pools rename from another thread than the one that opened; the version belongs to the process."""
    temp = root.join("c.tmp")
    bodies = [payload("p0", MIB), payload("p1", MIB)]

    def client(index, gate):
        with concurrent.futures.ThreadPoolExecutor(1) as opener, concurrent.futures.ThreadPoolExecutor(1) as renamer:
            fd = opener.submit(os.open, temp, TRUNC, 0o644).result()
            opener.submit(os.write, fd, bodies[index]).result()
            gate.wait()
            opener.submit(os.close, fd).result()
            renamer.submit(os.rename, temp, root.join(f"target{index}")).result()

    with Gate(2) as both_written:
        in_processes([(client, 0, both_written), (client, 1, both_written)])
    for index, body in enumerate(bodies):
        with open(root.join(f"target{index}"), "rb") as file:
            assert_bytes(file.read(), body, f"target{index}")


def test_a_writer_that_dies_leaves_the_others_unharmed(root):
    temp, target = root.join("c.tmp"), root.join("c.data")
    body = payload("alive", MIB)
    with Gate(2) as half_written:

        def dies():
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, payload("dead", MIB // 2))
            half_written.wait()
            os._exit(0)

        def lives():
            half_written.wait()
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, body)
            os.close(fd)
            os.rename(temp, target)

        dying, living = Child(dies), Child(lives)
        with pytest.raises(AssertionError):
            dying.result()  # it ends without a result: it was made to
        living.result()

    def check():
        with open(target, "rb") as file:
            assert_bytes(file.read(), body, "target")

    root.check_everywhere(check)


@pytest.mark.beyond_plain
def test_fallback_unlink_of_the_temp_is_the_callers_own(root):
    """LMCache MP unlinks the temp when its batch fails: that must not take the temp from a writer that goes on."""
    temp, target = root.join("c.tmp"), root.join("c.data")
    body = payload("goes on", MIB)
    with Gate(2) as both_open, Gate(2) as unlinked:

        def fails():
            both_open.wait()
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, payload("fails", MIB // 2))
            os.close(fd)
            os.unlink(temp)
            unlinked.wait()

        def goes_on():
            fd = os.open(temp, TRUNC, 0o644)
            os.write(fd, body[: MIB // 2])
            both_open.wait()
            unlinked.wait()
            os.write(fd, body[MIB // 2 :])
            os.close(fd)
            os.rename(temp, target)

        in_processes([(goes_on,), (fails,)])
    with open(target, "rb") as file:
        assert_bytes(file.read(), body, "target")


def test_one_writer_alone_sees_plain_posix(root):
    """Without a second writer a temp name is an ordinary file: reopened, appended to, truncated again, read back before the rename."""
    temp, target = root.join("c.tmp"), root.join("c.data")
    body = payload("alone", MIB)

    def put():
        fd = os.open(temp, TRUNC, 0o644)
        os.write(fd, b"x" * 100)
        os.close(fd)
        fd = os.open(temp, TRUNC, 0o644)
        os.write(fd, body[:1000])
        os.close(fd)
        fd = os.open(temp, os.O_WRONLY | os.O_APPEND)
        os.write(fd, body[1000:])
        os.close(fd)
        with open(temp, "rb") as file:
            assert_bytes(file.read(), body, "the temp before the rename")
        os.rename(temp, target)

    in_process(put)
    root.check_everywhere(lambda: assert_bytes(open(target, "rb").read(), body, "target"))
