"""Reads that go past the daemon: counted, unharmed by whatever happens to the object meanwhile, and nothing leaks."""

import functools
import mmap
import os
import resource
import subprocess
import time

import pytest

import kvc_env
import kvc_mount
from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, wait_until
from kvc_native import Mapping, aligned
from kvc_process import Gate, in_process, in_processes

pytestmark = [pytest.mark.needs_daemon, pytest.mark.skipif(os.geteuid() != 0, reason="passthrough needs root")]

SIZE = 9 * MIB


def put(path, data):
    with open(f"{path}.tmp", "xb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
    os.rename(f"{path}.tmp", path)


def read_buffered(path, size=SIZE):
    with open(path, "rb", buffering=0) as file:
        return file.read(size)


def read_direct(path, size=SIZE):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = aligned(size)
        return bytes(memoryview(buffer)[: os.readv(fd, [buffer])])
    finally:
        os.close(fd)


def read_mapped(path, size=SIZE):
    fd = os.open(path, os.O_RDONLY)
    try:
        mapping = Mapping(fd, size, shared=False, writable=False, populate=True)
        data = mapping.read()
        mapping.close()
        return data
    finally:
        os.close(fd)


STYLES = pytest.mark.parametrize("read", [read_buffered, read_direct, read_mapped], ids=["read", "odirect", "mmap"])


@pytest.fixture(params=["auto", "off"])
def passthrough(request):
    if request.param == "auto" and any("passthrough=off" in option for option in kvc_env.EXTRA_OPTIONS):
        pytest.skip("KVCACHEFS_TEST_OPTIONS forbids it")
    return request.param


@pytest.fixture
def mount(new_mount, passthrough):
    """With whole bodies as files of their own, whether passed through or not."""
    made = new_mount({"passthrough": passthrough, "pack_below": "8K"})
    if passthrough == "auto" and made.status()["features"]["passthrough"] is not True:
        pytest.skip("this kernel or libfuse has no passthrough")
    return made


def put_and_forget(mount, names, size=SIZE):
    """On the volume and not in the daemon's RAM."""
    for name in names:
        put(os.path.join(mount.path, name), payload(name, size))
    mount.remount()


def allocated_extents(mount):
    return sum(
        os.stat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(os.path.join(mount.volume, "nodes"))
        for name in names
        if name.endswith((".pack", ".solo"))
    )


def descriptors(mount):
    return len(os.listdir(f"/proc/{mount.pid}/fd"))


@STYLES
def test_reads_do_not_pass_the_daemon(mount, passthrough, read):
    put_and_forget(mount, ["one", "two"])
    before = mount.status()["reads"]
    for name in ("one", "two", "one"):
        assert_bytes(in_process(read, os.path.join(mount.path, name)), payload(name, SIZE), name)
    after = mount.status()["reads"]
    assert after["opens"] >= before["opens"] + 3
    if passthrough == "auto" and read is not read_direct:
        assert after["passthrough_opens"] == before["passthrough_opens"] + 3
        assert after["requests"] == before["requests"], "a read came to the daemon"
    else:  # with O_DIRECT the volume would take aligned reads only
        assert after["passthrough_opens"] == 0
        assert after["requests"] > before["requests"]


def give_up_cached(mount):
    for where, _, names in os.walk(os.path.join(mount.volume, "nodes")):
        for name in names:
            if name.endswith(".solo"):
                fd = os.open(os.path.join(where, name), os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def test_what_the_kernel_reads_ahead_is_counted(new_mount):
    mount = new_mount({"pack_below": "8K"})
    if mount.status()["features"]["passthrough"] is not True:
        pytest.skip("this kernel or libfuse has no passthrough")
    if mount.status()["volume"]["filesystem"] == "tmpfs":
        pytest.skip("nothing is read from storage here")
    names = [f"chunk{index}" for index in range(8)]
    put_and_forget(mount, names)

    def is_counted():
        """Once in several times: where its reader pauses, as on a machine that does much else, nothing is read ahead, rightly."""
        mount.remount()
        give_up_cached(mount)
        assert mount.status()["prefetch"]["kernel_bytes"] == 0
        for name in names[:4]:
            assert_bytes(read_buffered(os.path.join(mount.path, name)), payload(name, SIZE), name)
        for _ in range(20):
            if (read_bytes := mount.status()["prefetch"]["kernel_bytes"]) >= SIZE:
                assert read_bytes <= SIZE * len(names), "more than there is, or twice"
                return True
            time.sleep(0.1)
        return False

    assert any(is_counted() for _ in range(10)), "the next ones are not read ahead"


def test_what_is_still_in_memory_is_read_from_there(mount):
    """Through the daemon: nothing told how large it would be, so it is in no memory file (test_memory_files.py)."""
    path = os.path.join(mount.path, "fresh")
    put(path, payload("fresh", SIZE))
    mount.drain()
    before = mount.status()["reads"]
    assert_bytes(read_buffered(path), payload("fresh", SIZE), "fresh")
    after = mount.status()["reads"]
    assert after["bytes_from_volume"] == before["bytes_from_volume"] and after["passthrough_opens"] == before["passthrough_opens"]
    assert after["bytes_from_ram"] == before["bytes_from_ram"] + SIZE


def rewrite(path, name):
    with open(path, "wb", buffering=0) as file:  # O_TRUNC in place
        file.write(payload(name, SIZE // 2))


def replace(path, name):
    put(f"{path}.other", payload(name, SIZE // 2))
    os.rename(f"{path}.other", path)


def cut(path, name):
    os.truncate(path, 0)
    rewrite(path, name)


def check_old_readers(mount, change, keep):
    """Of "body", which is there and changed while it is open and mapped; `keep`: they go on seeing what they opened."""
    path = os.path.join(mount.path, "body")
    old = payload("body", SIZE)
    with open(path, "rb", buffering=0) as reader:
        mapping = Mapping(reader.fileno(), SIZE, shared=False, writable=False, populate=False)
        assert reader.read(KIB) == old[:KIB]
        in_process(change, path, "new")
        assert_bytes(in_process(read_buffered, path), payload("new", SIZE // 2), "the new body")
        mount.drain()
        if keep:
            assert os.pread(reader.fileno(), SIZE, 0) == old
            assert mapping.read() == old
        mapping.close()
    assert_bytes(in_process(read_buffered, path), payload("new", SIZE // 2), "the new body, later")


@pytest.mark.parametrize("change", [rewrite, replace, cut])
def test_old_readers_keep_the_bytes_they_opened(mount, passthrough, change):
    """rename: POSIX says so for every file system. In place: a mount that passes reads through gives the writer a new file."""
    put_and_forget(mount, ["body"])
    check_old_readers(mount, change, keep=passthrough == "auto" or change is replace)


@pytest.mark.parametrize("how", ["unlink", "replace"])
def test_a_mapping_outlives_its_object(mount, how):
    """The mapping is the only thing left: descriptor closed, name gone, space given back and used again."""
    put_and_forget(mount, ["mapped"])
    path = os.path.join(mount.path, "mapped")
    data = payload("mapped", SIZE)
    fd = os.open(path, os.O_RDONLY)
    mapping = Mapping(fd, SIZE, shared=True, writable=False, populate=False)
    os.close(fd)
    assert mapping.read(0, 4 * KIB) == data[: 4 * KIB]  # the rest is read later
    if how == "unlink":
        os.unlink(path)
    else:
        replace(path, "mapped instead")
    mount.drain()
    for index in range(4):
        put(os.path.join(mount.path, f"filler{index}"), payload(f"filler{index}", SIZE))
    mount.drain()
    assert mapping.read() == data
    mapping.close()


@pytest.mark.parametrize("kind", ["packed", "solo"])
def test_mappings_outlive_close_unlink_eviction_and_reclaim(new_mount, passthrough, kind):
    """Whatever of them was read before: nothing, a page, all. Their neighbours' space is given back meanwhile."""
    mount = new_mount({"passthrough": passthrough, "pack_below": "16M" if kind == "packed" else "8K", "memory": "128M"})
    names = [f"chunk{index}" for index in range(8)]
    put_and_forget(mount, names)
    mount.remount(memory="32M")

    def run():
        held = []
        for name, touch in (("chunk2", None), ("chunk3", 4 * KIB), ("chunk4", SIZE), ("chunk7", None)):
            path = os.path.join(mount.path, name)
            assert os.getxattr(path, "user.kvcachefs.kind").decode() == kind
            for shared in (False, True):
                fd = os.open(path, os.O_RDONLY)
                mapping = Mapping(fd, SIZE, shared=shared, writable=False, populate=touch == SIZE)
                os.close(fd)
                if touch == 4 * KIB:
                    assert mapping.read(0, touch) == payload(name, SIZE)[:touch]
                held.append((name, shared, mapping))
        before = mount.status()
        for name in names:
            os.unlink(os.path.join(mount.path, name))
        mount.drain()
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        for index in range(6):  # more than memory holds: what is still in RAM of the others goes
            put(os.path.join(mount.path, f"filler{index}"), payload(f"filler{index}", SIZE))
        for index in range(6):
            assert_bytes(read_buffered(os.path.join(mount.path, f"filler{index}")), payload(f"filler{index}", SIZE), f"filler{index}")
        mount.drain()
        wait_until(
            lambda: mount.status()["reclaim"]["bytes"] >= before["reclaim"]["bytes"] + 4 * SIZE,
            SOON,
            "the space of the others is given back",
        )
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        for name, shared, mapping in held:
            assert_bytes(mapping.read(), payload(name, SIZE), f"{name}, {'shared' if shared else 'private'}")
            mapping.close()

    in_process(run)  # a page that is gone is a SIGBUS
    wait_until(lambda: mount.status()["objects"]["open_handles"] == 0, SOON, "all is closed")
    mount.stop()
    assert allocated_extents(mount) <= 6 * SIZE + 2 * MIB, "their space is not given back"


def test_writer_in_place_while_mapped_readers_come_and_go(mount):
    put_and_forget(mount, ["busy"], MIB)
    path = os.path.join(mount.path, "busy")
    for version in range(20):
        with open(path, "rb", buffering=0) as reader:
            before = reader.read()
            with open(path, "r+b", buffering=0) as writer:  # no O_TRUNC: the same body, changed in place
                writer.write(payload("busy", MIB, version + 1))
            with open(path, "rb", buffering=0) as again:
                assert_bytes(again.read(), payload("busy", MIB, version + 1), f"version {version + 1}")
            assert_bytes(before, payload("busy", MIB, version), f"version {version}")
        mount.drain()


@pytest.mark.deadline(600)
@pytest.mark.skipif("overlay" not in open("/proc/filesystems").read(), reason="no overlayfs in this kernel")
def test_a_volume_that_the_kernel_does_not_pass_through(tmp_path, new_mount, request):
    """Told once, and bodies are read ahead into RAM as if passthrough were off. Two stacked file systems below are one too many."""
    below = tmp_path / "lower"
    below.mkdir()
    for level in ("once", "twice"):
        for name in ("upper", "work", "merged"):
            (tmp_path / level / name).mkdir(parents=True)
        merged, options = tmp_path / level / "merged", f"lowerdir={below},upperdir={tmp_path}/{level}/upper,workdir={tmp_path}/{level}/work"
        made = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"no overlay mount on this file system: {made.stderr.strip()}")
        request.addfinalizer(functools.partial(subprocess.run, ["umount", merged], check=True))
        below = merged
    mount = new_mount({"pack_below": "8K", "memory": "512M"}, volume=str(below / "volume"))
    request.addfinalizer(mount.stop)
    if mount.status()["features"]["passthrough"] is not True:
        pytest.skip("this kernel or libfuse has no passthrough")
    names = [f"chunk{index}" for index in range(6)]
    put_and_forget(mount, names)
    for attempt in range(11):  # the first open tells; and where its reader pauses nothing is read ahead
        os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
        before = mount.status()
        for name in names:
            assert_bytes(read_buffered(os.path.join(mount.path, name)), payload(name, SIZE), name)
        after = mount.status()
        if attempt > 0 and after["prefetch"]["used_bytes"] >= before["prefetch"]["used_bytes"] + 3 * SIZE:
            break
    assert after["features"]["passthrough"] is False
    assert "of chunks on this volume" in after["features"]["lost"]
    mount.wait_for_log("the kernel takes no backing file")
    assert mount.log_text().count("the kernel takes no backing file") == 1
    assert after["prefetch"]["used_bytes"] >= before["prefetch"]["used_bytes"] + 3 * SIZE
    assert after["prefetch"]["kernel_bytes"] == before["prefetch"]["kernel_bytes"]


def test_nothing_leaks(mount):
    """Many opens one after another, many at once: afterwards the daemon has the descriptors it had before."""
    names = [f"small{index}" for index in range(500)]
    put_and_forget(mount, names, 16 * KIB)
    paths = [os.path.join(mount.path, name) for name in names]
    for path in paths:
        read_buffered(path)
    wait_until(lambda: mount.status()["objects"]["open_handles"] == 0, SOON, "all is closed")
    before = descriptors(mount)

    def one_after_another(count):
        for index in range(count):
            os.close(os.open(paths[index % len(paths)], os.O_RDONLY))

    def at_once(count, all_open, all_read):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        opened = [os.open(paths[index % len(paths)], os.O_RDONLY) for index in range(count)]
        all_open.wait()
        for index in range(0, count, 997):
            name = names[index % len(names)]
            assert os.pread(opened[index], 16 * KIB, 0) == payload(name, 16 * KIB)
        all_read.wait()
        for fd in opened:
            os.close(fd)

    in_process(one_after_another, 100_000 if kvc_env.LONG else 5_000)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = min(20_000, hard - 100)
    shares = [min(each, 20_000 - start) for start in range(0, 20_000, each)]
    with Gate(len(shares)) as all_open, Gate(len(shares)) as all_read:
        in_processes([(at_once, share, all_open, all_read) for share in shares])
    wait_until(lambda: mount.status()["objects"]["open_handles"] == 0, SOON, "all is closed again")
    assert descriptors(mount) <= before + 8, "descriptors are left over"


def test_mmap_object_of_python(mount):
    """mmap.mmap dup()s the descriptor and keeps it: the open lives as long as the mapping."""
    put_and_forget(mount, ["python"], MIB)
    path = os.path.join(mount.path, "python")
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), MIB, access=mmap.ACCESS_READ)
    os.unlink(path)
    mount.drain()
    assert mapped[:] == payload("python", MIB)
    mapped.close()


@pytest.mark.parametrize("plant", (os.symlink, os.link))
def test_a_link_in_place_of_an_extent_hands_out_nothing(new_mount, plant):
    """Who can write to the volume does not have root read another file to anybody, by way of passthrough or not."""
    mount = new_mount({"pack_below": "8K", "allow_other": None})
    os.chmod(mount.path, 0o755)
    put_and_forget(mount, ["chunk", "other"])
    mount.stop()
    secret = os.path.join(mount.base, "secret")
    with open(secret, "wb") as file:
        file.write(payload("secret", SIZE))
    os.chmod(secret, 0o600)
    extents = subprocess.run(["find", mount.volume, "-name", "*.solo"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(extents) == 2
    moved = [extents[0], extents[0] + ".away"]
    os.rename(*moved)
    plant(secret, extents[0])
    mount.start()
    read = 0
    for name in ("chunk", "other"):
        try:
            assert_bytes(read_buffered(os.path.join(mount.path, name)), payload(name, SIZE), name)
            read += 1
        except OSError:
            pass
    assert read == 1, "the other is what it was, and the one that is a link cannot be read"
    mount.stop()
    os.unlink(extents[0])
    os.rename(*reversed(moved))
    mount.start()
    for name in ("chunk", "other"):
        assert_bytes(read_buffered(os.path.join(mount.path, name)), payload(name, SIZE), name)
    with open(secret, "rb") as file:
        assert_bytes(file.read(), payload("secret", SIZE), "secret")


@pytest.mark.parametrize("name", ("LOCK", "RESERVE"))
def test_a_link_in_place_of_a_file_of_the_node_is_not_written_through(new_mount, name):
    mount = new_mount({})
    put_and_forget(mount, ["chunk"], MIB)
    mount.stop()
    victim = os.path.join(mount.base, "victim")
    with open(victim, "w", encoding="ascii") as file:
        file.write("root's own")
    (node,) = os.listdir(os.path.join(mount.volume, "nodes"))
    planted = os.path.join(mount.volume, "nodes", node, name)
    if os.path.lexists(planted):
        os.unlink(planted)
    os.symlink(victim, planted)
    for repair in ([], ["--repair"]):
        kvc_mount.run_command("fsck", *repair, mount.volume)
    if name == "LOCK":
        with pytest.raises(kvc_mount.MountFailed) as caught:
            mount.start()
        assert "symbolic link" in caught.value.output
        os.unlink(planted)
    mount.remount()
    assert_bytes(read_buffered(os.path.join(mount.path, "chunk"), MIB), payload("chunk", MIB), "chunk")
    mount.stop()
    with open(victim, encoding="ascii") as file:
        assert file.read() == "root's own"
