"""A mount's life: start, readiness and errors, unmount, signals, crashes, other users."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading

import pytest

import kvc_env
import kvc_mount
from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, Mount, MountFailed, mount_command, mount_entry, process_is_gone, run_command, wait_until
from kvc_process import in_process

pytestmark = pytest.mark.needs_daemon


def put(mount, name, size=MIB):
    path = os.path.join(mount.path, name)
    with open(f"{path}.tmp", "wb") as file:
        file.write(payload(name, size))
    os.rename(f"{path}.tmp", path)


def check(mount, name, size=MIB):
    with open(os.path.join(mount.path, name), "rb") as file:
        assert_bytes(file.read(), payload(name, size), name)


def test_what_is_written_is_there_after_every_remount(new_mount):
    mount = new_mount()
    for generation in range(4):
        os.mkdir(os.path.join(mount.path, f"d{generation}"))
        for index in range(5):
            put(mount, f"d{generation}/c{index}", 100_000 * (index + 1))
        mount.remount()
        assert sorted(os.listdir(mount.path)) == [f"d{number}" for number in range(generation + 1)]
        for older in range(generation + 1):
            for index in range(5):
                check(mount, f"d{older}/c{index}", 100_000 * (index + 1))


def test_nothing_of_the_mount_shows_in_the_bare_mountpoint(new_mount):
    mount = new_mount()
    put(mount, "chunk")
    mount.stop()
    assert os.listdir(mount.path) == []
    assert "VOLUME" in os.listdir(mount.volume) and "nodes" in os.listdir(mount.volume)


def test_an_empty_directory_is_initialised(new_mount):
    mount = new_mount(start=False)
    os.mkdir(mount.volume)
    mount.start()
    put(mount, "chunk")
    mount.remount()
    check(mount, "chunk")


def test_without_create_no_volume_is_made(new_mount):
    mount = new_mount({"create": "off"}, start=False)
    for is_there in (False, True):
        if is_there:
            os.mkdir(mount.volume)
        refused = daemonised(mount)
        assert refused.returncode == 1 and mount.volume in refused.stderr and "create=off" in refused.stderr, refused.stderr
        assert mount_entry(mount.path) is None
    assert os.listdir(mount.volume) == []
    os.rmdir(mount.volume)
    with_volume = new_mount(volume=mount.volume)
    put(with_volume, "chunk")
    with_volume.stop()
    mount.start()
    check(mount, "chunk")


def daemonised(mount):
    """Starts without -f; returns the completed command. The mount must be usable when it comes back."""
    kvc_mount.watchdog().tell(op="mount", path=mount.path, pid=0)
    return subprocess.run(
        mount_command(mount.volume, mount.path, mount.options, foreground=False),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * kvc_env.SCALE,
        check=False,
    )


def test_daemonised_start_is_ready_when_it_returns(new_mount):
    mount = new_mount(start=False)
    result = daemonised(mount)
    assert result.returncode == 0, result.stdout + result.stderr
    assert mount_entry(mount.path)[0] == "fuse.kvcachefs"
    put(mount, "chunk")
    result = run_command("umount", mount.path)
    assert result.returncode == 0, result.stderr
    assert mount_entry(mount.path) is None
    result = daemonised(mount)  # the first daemon must be gone by now
    assert result.returncode == 0, result.stdout + result.stderr
    check(mount, "chunk")
    assert run_command("umount", mount.path).returncode == 0


@pytest.mark.parametrize("closed", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_daemonised_start_without_standard_descriptors(new_mount, temp_dir, closed):
    """Their numbers must not go to what is opened first, which prints and /dev/null would then take."""
    mount = new_mount({"log_file": os.path.join(temp_dir, "log")}, start=False)
    kvc_mount.watchdog().tell(op="mount", path=mount.path, pid=0)
    process = subprocess.Popen(
        mount_command(mount.volume, mount.path, mount.options, foreground=False),
        preexec_fn=lambda: [os.close(descriptor) for descriptor in closed],
    )
    try:
        assert process.wait(60 * kvc_env.SCALE) == 0
    finally:
        process.kill()
    put(mount, "chunk")

    def logged():
        with open(mount.options["log_file"], encoding="utf-8") as log:
            return " mounted " in log.read()

    wait_until(logged, SOON, "it is logged")
    assert run_command("umount", mount.path).returncode == 0


def test_a_caller_that_blocks_signals_and_ignores_those_of_children(new_mount):
    """The mask is inherited by a program that is started; SIGTERM ends the daemon all the same."""
    mount = new_mount(start=False)

    def in_child():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    result = run_command("mount", mount.volume, mount.path, preexec_fn=in_child)
    assert result.returncode == 0, result.stderr
    put(mount, "chunk")
    pid = mount.status()["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: process_is_gone(pid), SOON, "the daemon ends")
    assert mount_entry(mount.path) is None


def test_daemonised_start_keeps_no_descriptor_of_its_caller(new_mount):
    """capture_output waits for the end of the pipe: a daemon that keeps it open makes every script hang."""
    mount = new_mount(start=False)
    reader, writer = os.pipe()
    kvc_mount.watchdog().tell(op="mount", path=mount.path, pid=0)
    process = subprocess.Popen(
        mount_command(mount.volume, mount.path, {}, foreground=False),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    process.wait(60 * kvc_env.SCALE)
    assert process.returncode == 0
    ended = threading.Event()

    def drain():
        while os.read(reader, 4096):
            pass
        ended.set()

    threading.Thread(target=drain, daemon=True).start()
    assert ended.wait(20 * kvc_env.SCALE), "the daemon holds its caller's stdout or stderr open"
    os.close(reader)
    assert run_command("umount", mount.path).returncode == 0


def test_daemonised_start_reports_errors_by_its_exit_code(new_mount):
    mount = new_mount(start=False)
    os.mkdir(mount.volume)
    with open(os.path.join(mount.volume, "somebody-elses"), "w", encoding="ascii") as file:
        file.write("data")
    result = daemonised(mount)
    assert result.returncode != 0
    assert mount.volume in result.stderr, f"the message does not name the volume: {result.stderr}"
    assert mount_entry(mount.path) is None
    assert os.listdir(mount.volume) == ["somebody-elses"]


def test_second_daemon_on_the_volume_is_refused_and_told_of_the_first(new_mount, temp_dir):
    first = new_mount()
    put(first, "chunk")
    other = Mount(temp_dir, volume=first.volume)
    with pytest.raises(MountFailed) as caught:
        other.start()
    assert (
        str(first.pid) in caught.value.output or first.path in caught.value.output
    ), f"the message names neither the pid nor the mountpoint of the first: {caught.value.output}"
    assert mount_entry(other.path) is None
    check(first, "chunk")
    put(first, "more")
    first.stop()
    with other:
        other.start()
        check(other, "chunk")
        check(other, "more")
        other.stop()


def test_mountpoint_in_use_is_refused(new_mount, temp_dir):
    first = new_mount()
    put(first, "chunk")
    other = Mount(temp_dir)
    result = run_command("mount", other.volume, first.path)
    assert result.returncode != 0
    assert first.path in result.stderr
    check(first, "chunk")


def test_a_mountpoint_with_blanks_is_told_from_a_free_one(new_mount, temp_dir):
    first = new_mount(start=False)
    first.path = os.path.join(first.base, "a b#c")
    os.mkdir(first.path)
    first.start()
    put(first, "chunk")
    other = Mount(temp_dir)
    for options in ([], ["-o", "nonempty"]):
        result = run_command("mount", other.volume, first.path, *options)
        assert result.returncode != 0 and "already" in result.stderr, result.stderr
        assert mount_entry(first.path)[3] == first.volume
    # The volume is held by a mount that will not end by itself: refused, and not waited for.
    result = run_command("mount", "-f", first.volume, other.path)
    assert result.returncode != 0 and first.path in result.stderr, result.stderr
    assert "waiting" not in result.stderr, result.stderr
    check(first, "chunk")
    first.remount()
    check(first, "chunk")


def test_dead_mountpoint_is_recovered_by_mount(new_mount):
    mount = new_mount()
    put(mount, "chunk")
    mount.drain()
    mount.kill()
    with pytest.raises(OSError) as caught:
        os.listdir(mount.path)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)  # the latter where requests come over io_uring
    mount.start()
    check(mount, "chunk")
    put(mount, "again")
    mount.remount()
    check(mount, "again")
    mount.stop()
    assert mount_entry(mount.path) is None, "an old mount lies below the new one"


def test_supervised_daemon_is_usable_again_after_kill_9(new_mount):
    """What systemd does with Restart=on-failure, by the same command line and without systemd."""
    mount = new_mount(start=False, options={"durability": "close"})
    stopping = threading.Event()
    running = []

    def supervise():
        while not stopping.is_set():
            process = subprocess.Popen(
                mount_command(mount.volume, mount.path, mount.options),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            kvc_mount.watchdog().tell(op="mount", path=mount.path, pid=process.pid)
            running.append(process)
            process.wait()

    def usable():
        try:
            return "chunk0" in os.listdir(mount.path) or (not running[1:] and mount_entry(mount.path) is not None)
        except OSError:
            return False

    supervisor = threading.Thread(target=supervise, daemon=True)
    supervisor.start()
    try:
        wait_until(lambda: mount_entry(mount.path) is not None, SOON, "the first start")
        for round_number in range(3):
            put(mount, f"chunk{round_number}")
            running[-1].kill()
            wait_until(lambda: len(running) == round_number + 2, SOON, "the supervisor starts it again")
            wait_until(usable, SOON, "the mount is usable again")
            for older in range(round_number + 1):
                check(mount, f"chunk{older}")
    finally:
        stopping.set()
        result = run_command("umount", mount.path)
        supervisor.join(30 * kvc_env.SCALE)
        while supervisor.is_alive():
            running[-1].kill()
            supervisor.join(1)
    assert result.returncode == 0, result.stderr


def test_sigterm_is_a_clean_unmount(new_mount):
    mount = new_mount({"flush_interval_ms": 60_000})
    for index in range(20):
        put(mount, f"chunk{index}")
    mount.terminate()
    mount.start()
    for index in range(20):
        check(mount, f"chunk{index}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_another_signal_does_not_cut_the_drain_short(new_mount, number):
    mount = new_mount({"flush_interval_ms": 60_000})
    for index in range(100):
        put(mount, f"chunk{index}")
    mount.process.send_signal(signal.SIGTERM)
    wait_until(lambda: mount_entry(mount.path) is None, SOON, "the daemon has unmounted")
    for another in (number, signal.SIGHUP):
        mount.process.send_signal(another)
    mount._wait_for_end(60)
    mount.start()
    assert not mount.status()["recovery"]["unclean_start"]
    for index in range(100):
        check(mount, f"chunk{index}")


@pytest.mark.needs_root
def test_what_is_mounted_there_after_a_lazy_umount_stays(new_mount):
    mount = new_mount()
    put(mount, "chunk")
    fd = os.open(os.path.join(mount.path, "chunk"), os.O_RDONLY)
    result = run_command("umount", "--lazy", mount.path)
    assert result.returncode == 0, result.stderr
    subprocess.run(["mount", "-t", "tmpfs", "other", mount.path], check=True)
    try:
        mount.process.send_signal(signal.SIGTERM)
        mount._wait_for_end(60)
        assert mount_entry(mount.path)[0] == "tmpfs"
    finally:
        os.close(fd)
        subprocess.run(["umount", mount.path], check=True)
    mount.start()
    check(mount, "chunk")


@pytest.mark.needs_root
def test_what_is_mounted_there_during_the_drain_stays(new_mount):
    mount = new_mount({"flush_interval_ms": 60_000})
    for index in range(100):
        put(mount, f"chunk{index}")
    fd = os.open(os.path.join(mount.path, "chunk0"), os.O_RDONLY)  # the connection outlives the unmount
    mount.process.send_signal(signal.SIGTERM)
    wait_until(lambda: mount_entry(mount.path) is None, SOON, "the daemon has unmounted")
    subprocess.run(["mount", "-t", "tmpfs", "other", mount.path], check=True)
    try:
        mount._wait_for_end(60)
        assert mount_entry(mount.path)[0] == "tmpfs"
        with pytest.raises(OSError) as caught:
            os.fstatvfs(fd)
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    finally:
        os.close(fd)
        subprocess.run(["umount", mount.path], check=True)
    mount.start()
    for index in range(100):
        check(mount, f"chunk{index}")


def test_sigint_of_a_foreground_daemon_is_a_clean_unmount(new_mount):
    mount = new_mount({"flush_interval_ms": 60_000})
    put(mount, "chunk")
    mount.process.send_signal(signal.SIGINT)
    mount._wait_for_end(60)
    assert mount_entry(mount.path) is None
    mount.start()
    check(mount, "chunk")


def test_umount_drains_what_is_staged(new_mount):
    mount = new_mount({"flush_interval_ms": 60_000})
    for index in range(60):
        put(mount, f"chunk{index}")
    result = run_command("umount", mount.path)
    assert result.returncode == 0, result.stderr
    mount._wait_for_end(60)
    mount.start()
    for index in range(60):
        check(mount, f"chunk{index}")


def test_umount_drains_although_the_daemon_s_threads_cannot_be_listed(new_mount, temp_dir):
    """As when the daemon ends while the command looks at its threads."""
    library = os.path.join(temp_dir, "gone_tasks.so")
    source = os.path.join(os.path.dirname(kvc_mount.__file__), "native", "gone_tasks.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    mount = new_mount({"flush_interval_ms": 60_000})
    put(mount, "chunk")
    sanitizer = os.environ.get("ASAN_OPTIONS", "")
    environment = dict(os.environ, LD_PRELOAD=library, ASAN_OPTIONS=f"{sanitizer}:verify_asan_link_order=0".lstrip(":"))
    result = run_command("umount", mount.path, env=environment)
    assert result.returncode == 0 and "written out in" in result.stdout, result.stdout + result.stderr
    mount._wait_for_end(60)


def test_umount_waits_for_a_daemon_that_runs_under_another_name(new_mount, monkeypatch, temp_dir):
    other = os.path.join(temp_dir, "kv")
    shutil.copy(kvc_env.BINARY, other)
    monkeypatch.setattr(kvc_env, "BINARY", other)
    mount = new_mount()
    result = run_command("umount", mount.path)
    assert result.returncode == 0 and "its daemon has closed the volume" in result.stderr + result.stdout, result.stderr
    mount._wait_for_end(60)


@pytest.mark.parametrize("end", ["umount", "sigterm"])
def test_unmount_gives_back_what_died_last(new_mount, end):
    """Also what a rename replaced a moment ago, and what was unlinked and is still open: nothing of it is left on the volume."""
    mount = new_mount({"pack_below": "200K"})
    names = [os.path.join(mount.path, f"f{index}") for index in range(8)]
    for index, name in enumerate(names):
        with open(name, "wb") as file:
            file.write(payload(f"first{index}", 300_000 if index % 2 else 30_000))
    mount.drain()
    held = []
    for index, name in enumerate(names[:6]):
        if end == "sigterm":
            held.append(os.open(name, os.O_RDONLY))
        if index >= 4:
            os.unlink(name)
            continue
        with open(f"{name}.tmp", "wb") as file:
            file.write(payload(f"second{index}", 300_000))
        os.rename(f"{name}.tmp", name)
    if end == "sigterm":
        mount.terminate()
    else:
        mount.stop()
    for fd in held:
        with contextlib.suppress(OSError):
            os.close(fd)
    fsck = run_command("fsck", mount.volume)
    assert fsck.returncode == 0, f"fsck: exit code {fsck.returncode}: {fsck.stdout}{fsck.stderr}"
    mount.start()
    for index in (0, 1, 2, 3, 6, 7):
        with open(names[index], "rb") as file:
            body = payload(f"second{index}", 300_000) if index < 4 else payload(f"first{index}", 300_000 if index % 2 else 30_000)
            assert_bytes(file.read(), body, names[index])


def test_umount_of_a_busy_mount_leaves_it_usable(new_mount):
    mount = new_mount()
    put(mount, "chunk")
    fd = os.open(os.path.join(mount.path, "chunk"), os.O_RDONLY)
    result = run_command("umount", mount.path)
    assert result.returncode != 0 and mount.path in result.stderr
    assert_bytes(os.pread(fd, MIB, 0), payload("chunk", MIB), "open descriptor")
    put(mount, "more")
    os.close(fd)
    mount.remount()
    check(mount, "more")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user unmounts by fusermount3")
def test_umount_waits_while_a_mount_is_busy_for_a_moment(new_mount, temp_dir):
    """Somebody looks at a file at that very moment, or the kernel has not closed yet what an ended process had open."""
    library = os.path.join(temp_dir, "busy_umount.so")
    source = os.path.join(os.path.dirname(kvc_mount.__file__), "native", "busy_umount.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source], check=True)
    mount = new_mount()
    put(mount, "chunk")
    sanitizer = os.environ.get("ASAN_OPTIONS", "")
    environment = dict(os.environ, LD_PRELOAD=library, KVCACHEFS_TEST_BUSY="3",
                       ASAN_OPTIONS=f"{sanitizer}:verify_asan_link_order=0".lstrip(":"))
    result = run_command("umount", mount.path, env=environment)
    assert result.returncode == 0, result.stderr
    mount._wait_for_end(60)
    mount.start()
    check(mount, "chunk")


def test_a_volume_that_was_removed_below_the_mount(new_mount):
    """New names are refused with an I/O error, not for want of room; the status says why, nothing hangs, and the mount can be ended."""
    mount = new_mount({"memory": "64M", "capacity": "256M"})
    for number in range(4):
        put(mount, f"chunk{number}", 6 * MIB if number % 2 else MIB // 16)
    mount.drain()
    shutil.rmtree(mount.volume)
    put_errors = set()

    def is_refused():
        try:
            put(mount, "more", 6 * MIB)
        except OSError as error:
            put_errors.add(error.errno)
            return error.errno == errno.EIO
        return False

    wait_until(is_refused, SOON, "new chunks are refused")
    assert put_errors == {errno.EIO}
    mount.wait_for_log("a call was answered with an I/O error")  # with the reason
    for call in (os.mkdir, os.mkfifo, lambda path: os.symlink("to", path)):
        with pytest.raises(OSError) as caught:
            call(os.path.join(mount.path, "new"))
        assert caught.value.errno == errno.EIO
    state = mount.status()["volume"]
    assert state["state"] == "degraded" and "removed" in state["reason"], state
    for number in range(4):
        try:
            check(mount, f"chunk{number}", 6 * MIB if number % 2 else MIB // 16)
        except OSError as error:  # what is not in RAM
            assert error.errno == errno.EIO
    result = run_command("umount", "--lazy", mount.path)
    assert result.returncode == 0, result.stderr
    mount.process.wait(60 * kvc_env.SCALE)
    mount.process = None
    kvc_mount.watchdog().tell(op="unmount", path=mount.path)


@pytest.mark.needs_root
def test_umount_tells_of_a_bind_mount_beside_it(new_mount, temp_dir):
    mount = new_mount()
    subprocess.run(["mount", "-c", "--bind", mount.path, temp_dir], check=True)
    try:
        result = run_command("umount", mount.path, timeout=60)
    finally:
        subprocess.run(["umount", temp_dir], check=True)
    assert result.returncode != 0
    assert f"goes on at {temp_dir}" in result.stderr and "namespace" not in result.stderr, result.stderr
    mount._wait_for_end(60)


# For a shell in a mount namespace of its own: it has copies of the mounts of the tests that run beside it, whose `umount` would
# tell of them. Only $KEEP stays.
FORGET_OTHERS = """awk -v keep="$KEEP" '/ - fuse[.]kvcachefs / && $5 != keep { print $5 }' /proc/self/mountinfo |
  while read -r each; do umount -l "$each"; done; """


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of its own needs root")
def test_umount_tells_of_a_mount_that_goes_on_elsewhere(new_mount):
    """As of a container that was started meanwhile: the daemon goes on for it, and is not waited for."""
    mount = new_mount()
    put(mount, "chunk")
    ours = os.readlink("/proc/self/ns/mnt")
    elsewhere = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", FORGET_OTHERS + "exec sleep 300"],
        env={**os.environ, "KEEP": os.path.realpath(mount.path)},
    )

    def command():
        with open(f"/proc/{elsewhere.pid}/comm", encoding="utf-8") as file:
            return file.read().strip()

    try:
        wait_until(lambda: command() == "sleep", SOON, "another namespace is there")
        assert os.readlink(f"/proc/{elsewhere.pid}/ns/mnt") != ours
        result = run_command("umount", mount.path)
        assert result.returncode != 0
        assert f"process {elsewhere.pid}" in result.stderr
        assert not mount._mounted()
    finally:
        elsewhere.kill()
        elsewhere.wait()
    mount._wait_for_end(60)
    mount.start()
    check(mount, "chunk")


@contextlib.contextmanager
def small_disk(size):
    path = kvc_mount.make_temp_dir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "kvcachefs-test", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        kvc_mount.remove_temp_dir(path)


def fill(path):
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_disk_that_others_have_filled_can_be_emptied(new_mount):
    """Also after kill -9 on the full disk: what is removed comes back, and goes on missing."""
    with small_disk(192 * MIB) as disk:
        mount = new_mount({"memory": "64M", "evict": "off"}, volume=os.path.join(disk, "volume"))
        try:
            for index in range(60):
                put(mount, f"chunk{index}")
            mount.drain()
            wait_until(lambda: mount.status()["capacity"]["reserve_bytes"] > 0, SOON, "room is kept for the journal")

            def free():
                info = os.statvfs(disk)
                return info.f_bavail * info.f_frsize

            for life, names in enumerate((range(30), range(30, 60))):
                fill(os.path.join(disk, f"others{life}"))
                assert free() == 0
                if life > 0:
                    mount.kill()
                    mount.start()
                for index in names:
                    os.unlink(os.path.join(mount.path, f"chunk{index}"))
                wait_until(lambda: free() > 20 * MIB, SOON, "what was removed comes back")
            for name in ("others0", "others1"):
                os.unlink(os.path.join(disk, name))
            wait_until(lambda: mount.status()["capacity"]["reserve_bytes"] == 192 * MIB // 256, SOON, "room is kept again")
            mount.remount()
            assert os.listdir(mount.path) == []
            put(mount, "after")
            mount.remount()
            check(mount, "after")
        finally:
            mount.destroy()


def test_umount_of_what_is_no_mount(temp_dir):
    for path in (temp_dir, os.path.join(temp_dir, "absent")):
        result = run_command("umount", path)
        assert result.returncode != 0
        assert path in result.stderr


def test_plain_umount_works_as_well(new_mount):
    """umount(8) knows nothing of kvcachefs: the daemon drains when the kernel says goodbye."""
    mount = new_mount({"flush_interval_ms": 60_000})
    put(mount, "chunk")
    subprocess.run(["umount", mount.path], check=True)
    mount._wait_for_end(60)
    mount.start()
    check(mount, "chunk")


def test_drain_attribute(new_mount):
    """setfattr -n user.kvcachefs.flush -v 1 MOUNTPOINT: afterwards a kill -9 loses nothing, whatever the durability."""
    mount = new_mount({"durability": "none", "flush_interval_ms": 60_000})
    for index in range(20):
        put(mount, f"chunk{index}")
    os.setxattr(mount.path, "user.kvcachefs.flush", b"1")
    mount.kill()
    mount.start()
    for index in range(20):
        check(mount, f"chunk{index}")


@pytest.mark.parametrize("durability", ["close", "sync"])
def test_acknowledged_changes_survive_kill_9(durability, new_mount):
    mount = new_mount({"durability": durability, "flush_interval_ms": 60_000})
    for index in range(10):
        put(mount, f"chunk{index}")
    os.unlink(os.path.join(mount.path, "chunk3"))
    put(mount, "replacement", 5000)
    os.mkdir(os.path.join(mount.path, "directory"))  # what comes before a rename is acknowledged with it
    os.rename(os.path.join(mount.path, "replacement"), os.path.join(mount.path, "chunk4"))
    mount.kill()
    mount.start()
    assert not os.path.exists(os.path.join(mount.path, "chunk3")), "a removed name came back"
    with open(os.path.join(mount.path, "chunk4"), "rb") as file:
        assert_bytes(file.read(), payload("replacement", 5000), "replaced name")
    for index in (0, 1, 2, 5, 6, 7, 8, 9):
        check(mount, f"chunk{index}")
    assert sorted(os.listdir(mount.path)) == sorted(
        [f"chunk{index}" for index in range(10) if index != 3] + ["directory"]
    )


def test_a_directory_alone_survives_kill_9_under_durability_close(new_mount):
    mount = new_mount({"durability": "close", "flush_interval_ms": 60_000})
    os.mkdir(os.path.join(mount.path, "directory"))
    mount.kill()
    mount.start()
    assert os.listdir(mount.path) == ["directory"]


def test_fsync_survives_kill_9_without_durability(new_mount):
    mount = new_mount({"durability": "none", "flush_interval_ms": 60_000})
    path = os.path.join(mount.path, "synced")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, payload("synced", MIB))
    os.fsync(fd)
    mount.kill()
    with contextlib.suppress(OSError):
        os.close(fd)  # ENOTCONN or nothing; it frees the descriptor all the same
    mount.start()
    check(mount, "synced")


def test_read_only_mount(new_mount):
    mount = new_mount()
    put(mount, "chunk")
    mount.remount(ro=None)
    check(mount, "chunk")
    assert os.listdir(mount.path) == ["chunk"]
    path = os.path.join(mount.path, "chunk")
    for call in (
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path + "2", os.O_WRONLY | os.O_CREAT),
        lambda: os.unlink(path),
        lambda: os.rename(path, path + "2"),
        lambda: os.mkdir(path + "d"),
        lambda: os.chmod(path, 0o600),
        lambda: os.truncate(path, 0),
        lambda: os.setxattr(path, "user.a", b"b"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS
    mount.stop()
    del mount.options["ro"]
    mount.start()
    check(mount, "chunk")
    put(mount, "more")


def test_the_daemon_may_open_as_many_files_as_its_hard_limit_says(new_mount):
    """Also a root that may not raise that limit (CAP_SYS_RESOURCE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        mount = new_mount()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now, most = resource.prlimit(mount.process.pid, resource.RLIMIT_NOFILE)
    assert now == most >= hard


# --- users ---


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@pytest.mark.needs_root
def test_allow_other_obeys_modes_of_two_users(new_mount):
    mount = new_mount({"allow_other": None})
    os.chmod(mount.path, 0o777)
    alice, bob = 65534, 12345
    join = lambda *names: os.path.join(mount.path, *names)  # noqa: E731

    def by_alice():
        become(alice)
        os.umask(0o022)
        os.mkdir(join("private"), 0o700)
        os.mkdir(join("public"), 0o755)
        for name, mode in (
            ("private/f", 0o644),
            ("public/readable", 0o644),
            ("public/secret", 0o600),
            ("public/writable", 0o666),
        ):
            with open(join(name), "wb") as file:
                file.write(b"alice")
            os.chmod(join(name), mode)
        os.mkdir(join("sticky"))
        os.chmod(join("sticky"), 0o1777)
        open(join("sticky", "hers"), "wb").close()

    def by_bob():
        become(bob)
        refused = [
            lambda: os.listdir(join("private")),
            lambda: open(join("private", "f"), "rb"),
            lambda: open(join("public", "secret"), "rb"),
            lambda: open(join("public", "readable"), "r+b"),
            lambda: os.unlink(join("public", "readable")),
            lambda: open(join("public", "new"), "wb"),
            lambda: os.mkdir(join("public", "d")),
            lambda: os.chmod(join("public", "writable"), 0o600),
            lambda: os.unlink(join("sticky", "hers")),
            lambda: os.rename(join("sticky", "hers"), join("sticky", "his")),
            lambda: os.utime(join("public", "readable"), (1, 1)),
            lambda: os.chown(join("public", "writable"), bob, bob),
            lambda: os.setxattr(join("public", "readable"), "user.a", b"b"),
        ]
        for index, call in enumerate(refused):
            with pytest.raises(PermissionError):
                call()
                pytest.fail(f"refusal {index} did not come")
        assert open(join("public", "readable"), "rb").read() == b"alice"
        with open(join("public", "writable"), "r+b") as file:
            file.write(b"bob")
        assert not os.access(join("public", "readable"), os.W_OK) and os.access(join("public", "readable"), os.R_OK)
        open(join("his"), "wb").close()
        found = os.stat(join("his"))
        assert (found.st_uid, found.st_gid) == (bob, bob)

    in_process(by_alice)
    in_process(by_bob)
    mount.remount()
    found = os.stat(join("public", "secret"))
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (alice, alice, 0o600)
    os.unlink(join("his"))
    in_process(by_bob)


@contextlib.contextmanager
def journals_that_take_nothing(mount):
    """No byte can be written to any journal."""
    get_flags, set_flags, immutable = 0x80086601, 0x40086602, 0x10  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL
    descriptors = []
    for directory, _, names in os.walk(mount.volume):
        descriptors += [os.open(os.path.join(directory, name), os.O_RDONLY) for name in names if name.endswith(".log")]

    def change(bits_of):
        for fd in descriptors:
            flags = struct.unpack("=i", fcntl.ioctl(fd, get_flags, bytes(4)))[0]
            fcntl.ioctl(fd, set_flags, struct.pack("=i", bits_of(flags)))

    try:
        try:
            change(lambda flags: flags | immutable)
        except OSError as error:
            pytest.skip(f"files cannot be made immutable here: {error}")
        yield
    finally:
        with contextlib.suppress(OSError):
            change(lambda flags: flags & ~immutable)
        for fd in descriptors:
            os.close(fd)


@pytest.mark.needs_root
def test_a_directory_whose_removal_was_not_journaled_takes_no_file_along(new_mount):
    """The kernel, told of an error, goes on knowing the directory: what is moved into it then would be lost."""
    mount = new_mount({"durability": "close"})
    directory = os.path.join(mount.path, "d")
    os.mkdir(directory)
    put(mount, "chunk")
    mount.drain()
    with journals_that_take_nothing(mount), pytest.raises(OSError):
        os.rmdir(directory)
    with pytest.raises(FileNotFoundError):
        os.rename(os.path.join(mount.path, "chunk"), os.path.join(directory, "chunk"))
    assert not os.path.exists(directory), "the kernel was made to look again"
    check(mount, "chunk")
    os.mkdir(directory)
    os.rename(os.path.join(mount.path, "chunk"), os.path.join(directory, "chunk"))
    mount.remount()
    with open(os.path.join(directory, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")


@pytest.mark.needs_root
def test_options_are_changed_by_root_and_the_mounting_user_alone(new_mount):
    mount = new_mount({"allow_other": None})
    os.chmod(mount.path, 0o777)
    option = "user.kvcachefs.option.prefetch"

    def other():
        become(12345)
        for name, value in ((option, b"off"), ("user.kvcachefs.option.log_level", b"debug"), ("user.kvcachefs.drop_caches", b"1"),
                            ("user.kvcachefs.flush", b"1")):  # a sync of everything that anybody wrote
            with pytest.raises(PermissionError):
                os.setxattr(mount.path, name, value)
        assert os.getxattr(mount.path, option) == b"on"

    in_process(other)
    os.setxattr(mount.path, "user.kvcachefs.flush", b"1")
    os.setxattr(mount.path, "user.kvcachefs.drop_caches", b"1")
    os.setxattr(mount.path, option, b"off")
    assert os.getxattr(mount.path, option) == b"off"


@pytest.mark.needs_root
def test_setgid_directory_gives_its_group(new_mount):
    mount = new_mount({"allow_other": None})
    shared = os.path.join(mount.path, "shared")
    os.mkdir(shared)
    os.chown(shared, 0, 4242)
    os.chmod(shared, 0o2777)

    def other():
        become(12345)
        os.close(os.open(os.path.join(shared, "f"), os.O_WRONLY | os.O_CREAT, 0o644))
        os.mkdir(os.path.join(shared, "d"))

    in_process(other)
    assert os.stat(os.path.join(shared, "f")).st_gid == 4242
    assert os.stat(os.path.join(shared, "d")).st_gid == 4242
    assert os.stat(os.path.join(shared, "d")).st_mode & stat.S_ISGID


@pytest.mark.needs_root
def test_without_allow_other_only_the_mounting_user_gets_in(new_mount):
    mount = new_mount()
    os.chmod(mount.path, 0o777)

    def other():
        become(12345)
        with pytest.raises(PermissionError):
            os.listdir(mount.path)

    in_process(other)


@pytest.mark.needs_root
def test_the_volume_is_closed_to_others(new_mount):
    mount = new_mount({"allow_other": None})
    put(mount, "chunk")
    mount.drain()
    assert stat.S_IMODE(os.stat(mount.volume).st_mode) == 0o700

    def other():
        become(12345)
        with pytest.raises(PermissionError):
            os.listdir(mount.volume)

    in_process(other)


CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 0x40000
MS_BIND = 4096


def private_fuse_device(directory):
    """In a mount namespace of this process alone: /dev/fuse open to everybody, as distributions ship it, whatever this machine has."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(value):
        if value != 0:
            raise OSError(ctypes.get_errno(), "private_fuse_device: " + os.strerror(ctypes.get_errno()))

    call(libc.unshare(CLONE_NEWNS))
    call(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
    subprocess.run(["sh", "-c", FORGET_OTHERS], env={**os.environ, "KEEP": ""}, check=True)
    device = os.path.join(directory, "fuse-device")
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 229))
    os.chmod(device, 0o666)
    call(libc.mount(device.encode(), b"/dev/fuse", None, MS_BIND, None))


@pytest.mark.needs_root
def test_ordinary_user(temp_dir):
    """uid 65534 mounts through fusermount3, with fewer features, and everything a cache needs works."""
    user = 65534
    base = os.path.join(temp_dir, "user")
    os.mkdir(base)
    os.chown(base, user, user)

    def run():
        private_fuse_device(temp_dir)
        become(user)
        os.environ["HOME"] = base
        mount = Mount(base)
        try:
            mount.start()
            put(mount, "chunk")
            os.mkdir(os.path.join(mount.path, "d"))
            found = os.stat(os.path.join(mount.path, "chunk"))
            assert (found.st_uid, found.st_gid) == (user, user)
            mount.remount()
            check(mount, "chunk")
            status = mount.status()
            assert status["objects"]["total"] >= 1
            assert status["options"]["pack_below"] == "32M", "nothing is passed through for this user"
            mount.drain()
            mount.kill()
            mount.start()
            check(mount, "chunk")
            mount.stop()
            assert mount_entry(mount.path) is None
        finally:
            print(mount.log_text()[-3000:], file=sys.stderr)
            mount.destroy()

    in_process(run)


@pytest.mark.needs_root
@pytest.mark.parametrize("inherited, expected", [(0, -500), (-900, -900)])
def test_the_oom_score_is_only_lowered(inherited, expected, temp_dir):
    """Of the daemon in a mount namespace of its own, where a file stands for its score: not everywhere may root lower that."""
    score, log_path, mountpoint = (os.path.join(temp_dir, name) for name in ("score", "log", "mnt"))
    os.mkdir(mountpoint)
    with open(score, "w", encoding="ascii") as file:
        file.write(f"{inherited}\n")
    script = FORGET_OTHERS + 'mount --bind "$0" "/proc/$$/oom_score_adj" && exec "$@"'
    command = mount_command(os.path.join(temp_dir, "volume"), mountpoint)
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, score, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    kvc_mount.watchdog().tell(op="mount", path=mountpoint, pid=process.pid)

    def mounted():
        with open(log_path, encoding="utf-8", errors="replace") as file:
            return "mounted " in file.read()

    try:
        wait_until(lambda: process.poll() is not None or mounted(), SOON, "the mount is there")
        process.terminate()
        assert process.wait(60 * kvc_env.SCALE) == 0
    finally:
        process.kill()
        process.wait()
        kvc_mount.watchdog().tell(op="unmount", path=mountpoint)
    with open(score, encoding="ascii") as file:
        assert int(file.read()) == expected


@pytest.mark.parametrize("is_read", [True, False], ids=["read-at-the-end", "never-read"])
def test_a_log_that_takes_nothing_stops_nobody(is_read, temp_dir):
    """The daemon's stderr is a pipe that is full. Calls that make it log are answered; all lines come once somebody reads, and the end does not wait."""
    calls = 600  # of some 500 bytes in the log each
    mountpoint = os.path.join(temp_dir, "mnt")
    os.mkdir(mountpoint)
    reader, writer = os.pipe()
    command = mount_command(os.path.join(temp_dir, "volume"), mountpoint)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    kvc_mount.watchdog().tell(op="mount", path=mountpoint, pid=process.pid)
    names = ["".join(chr(ord("a") + index // 26**place % 26) for place in range(3)) * 70 for index in range(calls)]
    refused = []

    def call():
        for name in names:
            try:
                os.setxattr(mountpoint, f"user.kvcachefs.option.{name}", b"1")
            except OSError:
                refused.append(name)
        with open(os.path.join(mountpoint, "chunk"), "wb") as file:
            file.write(payload("chunk", MIB))

    text = []
    client, log = threading.Thread(target=call), threading.Thread(target=lambda: text.extend(os.fdopen(reader, errors="replace")))
    try:
        wait_until(lambda: process.poll() is not None or mount_entry(mountpoint) is not None, SOON, "the mount is there")
        client.start()
        client.join(60 * kvc_env.SCALE)
        assert not client.is_alive(), "a call waits for the log"
        assert refused == names
        if is_read:
            log.start()
        assert run_command("umount", mountpoint).returncode == 0
        assert process.wait(60 * kvc_env.SCALE) == 0
    finally:
        process.kill()
        process.wait()
        kvc_mount.watchdog().tell(op="unmount", path=mountpoint)
        if client.is_alive():
            subprocess.run(["umount", "-l", mountpoint], check=False)
            client.join()
        if log.ident:
            log.join()
        else:
            os.close(reader)
    if is_read:
        assert [name for name in names if not any(f"option.{name}:" in line for line in text)] == []
        assert not any("dropped" in line for line in text)


def test_version_names_libraries_and_features():
    result = run_command("--version")
    assert result.returncode == 0
    text = result.stdout.lower()
    for word in ("kvcachefs", "fuse"):
        assert word in text, f"--version does not tell of {word}: {text}"


@pytest.mark.parametrize(
    "command",
    [[], ["mount"], ["umount"], ["status"], ["info"], ["fsck"], ["rebuild"]],
    ids=lambda command: " ".join(command) or "-",
)
def test_help_of_every_command(command):
    result = run_command(*command, "--help")
    assert result.returncode == 0
    assert "usage" in result.stdout.lower() or "options" in result.stdout.lower()


def test_unknown_command_is_refused():
    result = run_command("no-such-command")
    assert result.returncode != 0
    assert "no-such-command" in result.stderr + result.stdout
