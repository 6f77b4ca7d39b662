"""A frozen backing file system (fsfreeze, snapshots by LVM or of a cloud disk): what needs no write on it goes on."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import threading

import pytest

import kvc_env
from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until

pytestmark = pytest.mark.needs_daemon

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878


@pytest.fixture
def ext4(temp_dir):
    """A file system of its own on a loop device."""
    image, path = os.path.join(temp_dir, "image"), os.path.join(temp_dir, "fs")
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not os.path.exists("/dev/loop-control"):
        pytest.skip("needs root, mkfs.ext4 and loop devices")
    with open(image, "wb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image], check=True)
    os.mkdir(path)
    if subprocess.run(["mount", "-o", "loop", image, path], stderr=subprocess.PIPE, check=False).returncode != 0:
        pytest.skip("this machine mounts no loop devices")
    yield path
    subprocess.run(["umount", "-l", path], check=False)


@contextlib.contextmanager
def frozen(path):
    """Thawed at the end, also where this process does not get there: nobody could unmount anything then."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    thaw = f"import fcntl, os, sys; os.read(0, 1); fcntl.ioctl({directory}, {FITHAW}, 0)"
    keeper = subprocess.Popen(["python3", "-c", thaw], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[directory])
    try:
        fcntl.ioctl(directory, FIFREEZE, 0)
        yield
    finally:
        keeper.communicate()  # its input ends
        os.close(directory)


def answer(*command):
    """The output of a process that is given 20 s: whoever hangs is told by name, and ends with the thaw."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: process.poll() is not None, SOON, f"{' '.join(command)} answers")
    return process.stdout.read()


def digest(body):
    return hashlib.md5(body).hexdigest()


def test_what_needs_no_write_goes_on(new_mount, ext4):
    mount = new_mount({"memory": "16M"}, volume=os.path.join(ext4, "volume"))
    os.mkdir(os.path.join(mount.path, "sub"))
    chunks = {f"sub/c{n}": payload(n, 300 * KIB) for n in range(120)}  # more than memory holds
    for name, body in chunks.items():
        with open(os.path.join(mount.path, name), "wb") as file:
            file.write(body)
    mount.drain()
    mount.remount()  # so that names and places come from the index
    warm = list(chunks)[:8]
    for name in warm:
        with open(os.path.join(mount.path, name), "rb") as file:
            assert file.read() == chunks[name]

    stored = {}

    def store():  # the journal and the index have something to write meanwhile
        for n in range(30):
            name = f"new{n}"
            with open(os.path.join(mount.path, name), "wb") as file:
                file.write(payload(1000 + n, 64 * KIB))
            stored[name] = payload(1000 + n, 64 * KIB)

    with frozen(ext4):
        writer = threading.Thread(target=store, daemon=True)
        writer.start()
        for _ in range(2):  # the second time behind whatever has begun to wait for the volume
            for name in warm + list(chunks)[-8:]:  # in RAM, and on the volume only
                assert answer("stat", "-c", "%s", os.path.join(mount.path, name)).strip() == str(300 * KIB)
                assert answer("md5sum", os.path.join(mount.path, name)).split()[0] == digest(chunks[name])
            assert "No such file" in answer("stat", os.path.join(mount.path, "sub/absent"))
            assert len(answer("ls", "-f", os.path.join(mount.path, "sub")).split()) == len(chunks) + 2
            assert answer(kvc_env.BINARY, "status", mount.path)
            answer("sleep", "3")  # some of the daemon's own rounds
    writer.join(60 * kvc_env.SCALE)
    assert not writer.is_alive() and len(stored) == 30
    mount.remount()
    for name, body in {**chunks, **stored}.items():
        with open(os.path.join(mount.path, name), "rb") as file:
            assert file.read() == body, name
    mount.stop()
    assert run_command("fsck", mount.volume).returncode == 0


def test_no_read_of_a_name_stores_into_a_file(new_mount):
    """A mapping of a file that is written through waits on a frozen file system, and is a SIGBUS on a full one."""
    mount = new_mount()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload(1, 64 * KIB))
    mount.remount()
    os.stat(os.path.join(mount.path, "chunk"))
    volume = os.stat(mount.volume).st_dev
    with open(f"/proc/{mount.pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            writes_through = "w" in fields[1] and "s" in fields[1] and os.makedev(major, minor) == volume
            assert not (writes_through and len(fields) > 5 and fields[5].startswith(os.path.realpath(mount.volume))), line


def test_who_waits_for_the_volume_can_be_stopped_and_keeps_no_name_back(new_mount, ext4):
    """The kernel holds the lock of what an attribute is set on: names in the root are looked up under that of the root."""
    mount = new_mount({"node": "a"}, volume=os.path.join(ext4, "volume"))
    with open(os.path.join(mount.path, "old"), "wb") as file:
        file.write(payload(1, 300 * KIB))
    mount.drain()

    def set_it(path):
        return subprocess.Popen(
            ["setfattr", "-n", "user.kvcachefs.flush", "-v", "1", path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    with frozen(ext4):
        with open(os.path.join(mount.path, "new"), "wb") as file:
            file.write(payload(2, 300 * KIB))
        waiting = [set_it(os.path.join(mount.path, ".kvcachefs"))]
        answer("sleep", "1")
        assert waiting[0].poll() is None, waiting[0].stderr.read()
        for n in range(5):
            assert "No such file" in answer("stat", os.path.join(mount.path, f"absent{n}"))
            assert answer("md5sum", os.path.join(mount.path, "old")).split()[0] == digest(payload(1, 300 * KIB))
        waiting.append(set_it(mount.path))
        answer("sleep", "1")
        for each, signal in zip(waiting, (2, 9)):
            each.send_signal(signal)
            wait_until(lambda each=each: each.poll() is not None, SOON, f"signal {signal} ends it")
        assert "No such file" in answer("stat", os.path.join(mount.path, "later"))
    os.setxattr(os.path.join(mount.path, ".kvcachefs"), "user.kvcachefs.flush", b"1")
    assert os.getxattr(os.path.join(mount.path, ".kvcachefs"), "user.kvcachefs.option.node") == b"a"
    with pytest.raises(OSError):
        os.setxattr(os.path.join(mount.path, ".kvcachefs"), "user.other", b"1")
    mount.remount()
    with open(os.path.join(mount.path, "new"), "rb") as file:
        assert file.read() == payload(2, 300 * KIB)
