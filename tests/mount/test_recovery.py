"""A new mount in the place of one that a killed daemon left, while clients go on."""

import ctypes
import errno
import fcntl
import glob
import os
import platform
import signal
import subprocess
import sys

import pytest

import kvc_env
import kvc_mount
from kvc_mount import SOON, MountFailed, mount_command, mount_entry, mountinfo_text, run_command, wait_until

pytestmark = pytest.mark.needs_daemon

MOUNTS_BENEATH = os.geteuid() == 0 and tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 5)

CLIENT = """
import os, sys
directory, name = sys.argv[1:]
while True:
    try:
        with open(f"{directory}/{name}", "wb") as file:
            file.write(bytes(4096))
    except OSError:
        pass
"""


def mounts_on(path, namespace="self"):
    with open(f"/proc/{namespace}/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return [line for line in lines if mountinfo_text(line.split(" ")[4]) == path]


def assert_dead(path):
    with pytest.raises(OSError) as caught:
        os.statvfs(path)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def put(mount, name):
    with open(os.path.join(mount.path, name), "wb") as file:
        file.write(name.encode())


def get(mount, name):
    with open(os.path.join(mount.path, name), "rb") as file:
        assert file.read() == name.encode()


class Clients:
    """Processes that write files into a directory all the time, whether they can or not."""

    def __init__(self):
        self.running = []

    def start(self, directory, count):
        for number in range(count):
            command = [sys.executable, "-S", "-E", "-c", CLIENT, directory, f"client{number}"]
            self.running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def stop(self):
        while self.running:
            process = self.running.pop()
            process.kill()
            process.wait()


@pytest.fixture
def clients():
    found = Clients()
    yield found
    found.stop()


@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
def test_clients_that_go_on_are_no_reason_to_refuse(new_mount, clients, foreground):
    mount = new_mount()
    clients.start(mount.path, 4)
    for _ in range(6):
        wait_until(lambda: os.path.exists(os.path.join(mount.path, "client0")), SOON, "clients write")
        pid = mount.status()["pid"]
        if foreground:
            mount.kill()
            mount.start()
        else:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: kvc_mount.process_is_gone(pid), SOON, "the daemon is gone")
            command = mount_command(mount.volume, mount.path, mount.options, foreground=False)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * kvc_env.SCALE, check=False)
            assert done.returncode == 0, done.stderr
        assert len(mounts_on(mount.path)) == 1
    clients.stop()
    if foreground:
        mount.stop()
    else:
        result = run_command("umount", mount.path)
        assert result.returncode == 0, result.stderr
    assert not mounts_on(mount.path)
    assert os.listdir(mount.path) == [] or not MOUNTS_BENEATH


@pytest.mark.needs_root
@pytest.mark.parametrize("kernel", ["6.4", "5.1"])
def test_older_kernels(new_mount, clients, kernel, temp_dir):
    """Clients get to the bare directory for a moment; that is told, and is no reason to refuse the next recovery."""
    library = os.path.join(temp_dir, "older_kernel.so")
    source = os.path.join(os.path.dirname(kvc_mount.__file__), "native", "older_kernel.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    sanitizer = os.environ.get("ASAN_OPTIONS", "")
    environment = dict(os.environ, LD_PRELOAD=library, KVCACHEFS_TEST_KERNEL=kernel,
                       ASAN_OPTIONS=f"{sanitizer}:verify_asan_link_order=0".lstrip(":"))
    mount = new_mount()
    pid = mount.status()["pid"]
    mount.kill()
    clients.start(mount.path, 4)
    for _ in range(6):
        wait_until(lambda: kvc_mount.process_is_gone(pid), SOON, "the daemon is gone")
        command = mount_command(mount.volume, mount.path, mount.options, foreground=False)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * kvc_env.SCALE, check=False,
                              env=environment)
        assert done.returncode == 0, done.stderr
        assert len(mounts_on(mount.path)) == 1
        wait_until(lambda: os.path.exists(os.path.join(mount.path, "client0")), SOON, "clients write")
        pid = mount.status()["pid"]
        os.kill(pid, signal.SIGKILL)
    clients.stop()
    assert run_command("umount", mount.path).returncode == 0
    below = len(os.listdir(mount.path))
    assert below == 0 or f"{below} entries" in done.stderr


def test_what_lies_below_a_dead_mount_is_told_of(new_mount):
    mount = new_mount(start=False)
    for name in ("one", "two"):
        put(mount, name)
    with pytest.raises(MountFailed, match="not empty"):
        mount.start()
    mount.start(nonempty=None)
    put(mount, "chunk")
    mount.drain()
    mount.kill()
    del mount.options["nonempty"]
    mount.start()
    get(mount, "chunk")
    if os.geteuid() == 0:
        mount.wait_for_log(f"{mount.path}: 2 entries")
    mount.stop()
    assert sorted(os.listdir(mount.path)) == ["one", "two"]
    with pytest.raises(MountFailed, match="not empty"):
        mount.start()


@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
@pytest.mark.parametrize("point", ["epoch-made", "attributes-asked"], ids=["at-the-volume", "when-mounted"])
def test_a_start_that_is_killed_leaves_a_dead_mount_where_one_was(new_mount, point, foreground):
    mount = new_mount()
    put(mount, "chunk")
    mount.drain()
    mount.kill()
    done = subprocess.run(mount_command(mount.volume, mount.path, mount.options, foreground=foreground), stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=60 * kvc_env.SCALE, check=False, env=dict(os.environ, KVCACHEFS_KILL_POINT=point))
    assert done.returncode != 0
    assert len(mounts_on(mount.path)) == 1
    assert_dead(mount.path)
    mount.start()
    get(mount, "chunk")
    mount.stop()
    assert not mounts_on(mount.path) and os.listdir(mount.path) == []


def test_a_start_that_is_refused_leaves_the_dead_mount(new_mount):
    mount = new_mount()
    mount.kill()
    lock_path, = glob.glob(os.path.join(mount.volume, "nodes", "*", "LOCK"))
    refused = run_command("mount", mount.volume, mount.path, "-o", f"log_file={mount.volume}/log")
    assert refused.returncode == 1, refused.stderr
    assert_dead(mount.path)
    with open(lock_path, "r+b") as lock:
        lock.truncate()  # of a holder that is no daemon
        fcntl.lockf(lock, fcntl.LOCK_EX)
        refused = run_command("mount", mount.volume, mount.path)
        assert refused.returncode == 1, refused.stderr
    assert_dead(mount.path)
    mount.start()
    assert len(mounts_on(mount.path)) == 1


@pytest.mark.needs_root
def test_a_dead_mount_of_another_program_is_left_alone(new_mount):
    """Before, it was unmounted at once: when the start failed later, clients wrote into the bare directory."""
    mount = new_mount(start=False)
    device = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
        assert ctypes.CDLL(None).mount(b"host:/dir", os.fsencode(mount.path), b"fuse.sshfs", 0, options.encode()) == 0
    finally:
        os.close(device)  # its daemon has died
    try:
        assert_dead(mount.path)
        for options in ([], ["-o", "durability=nonsense"], ["-o", "nonempty"]):
            refused = run_command("mount", mount.volume, mount.path, *options)
            assert refused.returncode == 1, refused.stderr
            assert_dead(mount.path)
        assert f"{mount.path} is a dead mount of fuse.sshfs (host:/dir)" in refused.stderr, refused.stderr
        assert f"umount -l {mount.path}" in refused.stderr and not os.path.exists(mount.volume)
    finally:
        subprocess.run(["umount", "-l", mount.path], check=True)
    mount.start()
    assert len(mounts_on(mount.path)) == 1


def test_a_dead_mount_is_unmounted(new_mount):
    mount = new_mount()
    mount.kill()
    result = run_command("umount", mount.path)
    assert result.returncode == 0, result.stderr
    assert not mounts_on(mount.path) and os.listdir(mount.path) == []


def test_a_dead_mount_behind_a_link_is_replaced(new_mount, temp_dir):
    mount = new_mount()
    mount.kill()
    link = os.path.join(temp_dir, "link")
    os.symlink(mount.path, link)
    result = run_command("mount", mount.volume, link)
    assert result.returncode == 0, result.stderr
    assert len(mounts_on(mount.path)) == 1 and not mounts_on(link)
    mount.status()


@pytest.mark.parametrize("options", [{}, {"allow_other": None, "noexec": None, "nodiratime": None, "sync": None}, {"ro": None}, {"noatime": None}],
                         ids=lambda options: ",".join(options) or "none")
def test_the_mount_is_as_any_other(new_mount, options):
    """Also in the place of a dead one, where libfuse has no part in it."""
    mount = new_mount()
    mount.stop()
    mount.start(**options)
    before = mount_entry(mount.path)
    mount.kill()
    mount.start()
    assert mount_entry(mount.path) == before


@pytest.mark.needs_root
def test_a_second_dead_mount_on_top_goes_as_well(new_mount):
    first, second = new_mount(), new_mount()
    put(first, "chunk")
    first.drain()
    first.kill()
    second.kill()
    subprocess.run(["mount", "-c", "--bind", second.path, first.path], check=True)
    assert len(mounts_on(first.path)) == 2
    first.start()
    assert len(mounts_on(first.path)) == 1
    get(first, "chunk")
    second.start()


@pytest.mark.needs_root
def test_other_namespaces_see_the_new_mount(new_mount):
    mount = new_mount(start=False)
    subprocess.run(["mount", "--bind", mount.base, mount.base], check=True)
    follower = None
    try:
        subprocess.run(["mount", "--make-shared", mount.base], check=True)
        mount.start()
        follower = subprocess.Popen(["unshare", "-m", "--propagation", "slave", "sleep", "600"])
        wait_until(lambda: len(mounts_on(mount.path, follower.pid)) == 1 and os.readlink(f"/proc/{follower.pid}/ns/mnt") !=
                   os.readlink("/proc/self/ns/mnt"), 30, "the namespace is there")
        mount.kill()
        mount.start()
        put(mount, "chunk")
        assert len(mounts_on(mount.path)) == 1 and len(mounts_on(mount.path, follower.pid)) == 1
        seen = subprocess.run(["nsenter", "-m", "-t", str(follower.pid), "cat", os.path.join(mount.path, "chunk")],
                              capture_output=True, check=False)
        assert seen.stdout == b"chunk", seen.stderr
        mount.stop()
        assert not mounts_on(mount.path, follower.pid)
    finally:
        if follower:
            follower.kill()
            follower.wait()
        mount.destroy()
        subprocess.run(["umount", "-l", mount.base], check=True)


@pytest.mark.needs_root
def test_a_daemon_whose_connection_was_aborted_is_waited_for(new_mount, temp_dir):
    """Its mount is dead, it still holds the volume: as one that writes out after its loop has failed."""
    mount = new_mount()
    put(mount, "chunk")
    mount.drain()
    connection = os.minor(os.stat(mount.path).st_dev)
    subprocess.run(["mount", "-t", "fusectl", "none", temp_dir], check=True)
    try:
        mount.process.send_signal(signal.SIGSTOP)
        with open(f"{temp_dir}/{connection}/abort", "w", encoding="ascii") as file:
            file.write("1")
    finally:
        subprocess.run(["umount", temp_dir], check=True)
    assert_dead(mount.path)
    command = subprocess.Popen(mount_command(mount.volume, mount.path, mount.options, foreground=False), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = ""
    while "waiting for the previous daemon" not in said:
        line = command.stderr.readline()
        assert line, f"it did not wait: {said}"
        said += line
    assert_dead(mount.path)
    mount.kill()
    _, rest = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 0, said + rest
    get(mount, "chunk")
    assert run_command("umount", mount.path).returncode == 0
