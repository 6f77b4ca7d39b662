"""A start that fails, for whatever reason, leaves nothing: no daemon, no mount, no lock on the volume."""

import fcntl
import glob
import os
import resource
import signal
import subprocess

import pytest

import kvc_env
import kvc_mount
from kvc_mount import SOON, mount_command, mount_entry, run_command, wait_until

pytestmark = pytest.mark.needs_daemon


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    """preloaded(what): the environment of a daemon whose stat() of its mount fails ("fail") or hangs ("hang"),
    or whose process that calls it outlives the daemon for a while ("linger"); or that reads a request as the kernel unmounts ("race")."""
    library = tmp_path_factory.mktemp("preload") / "stat_of_root.so"
    source = os.path.join(os.path.dirname(kvc_mount.__file__), "native", "stat_of_root.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    library.parent.chmod(0o755)

    def environment(what):
        sanitizer = os.environ.get("ASAN_OPTIONS", "")
        return dict(os.environ, LD_PRELOAD=str(library), KVCACHEFS_TEST_STAT=what,
                    ASAN_OPTIONS=f"{sanitizer}:verify_asan_link_order=0".lstrip(":"))

    return environment


def processes_of(volume):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        pid = int(path.split("/")[2])
        if os.fsencode(volume) in words and not kvc_mount.process_is_gone(pid):
            found.append(pid)
    return found


@pytest.fixture
def start(new_mount):
    """start(environment, foreground=False): (mount, the command that mounts, running)."""
    volumes = []

    def begin(environment=None, foreground=False, mount=None):
        mount = mount or new_mount(start=False)
        volumes.append(mount.volume)
        kvc_mount.watchdog().tell(op="mount", path=mount.path, pid=0)
        command = subprocess.Popen(
            mount_command(mount.volume, mount.path, {}, foreground=foreground),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        return mount, command

    yield begin
    for volume in volumes:
        for pid in processes_of(volume):
            os.kill(pid, signal.SIGKILL)


def assert_nothing_is_left(mount, at_once):
    """`at_once`: the command has told of its end, so everything else has ended before."""
    seconds = 0 if at_once else SOON
    wait_until(lambda: mount_entry(mount.path) is None, seconds, "the mount is gone")
    wait_until(lambda: not processes_of(mount.volume), seconds, "no process of it is left")
    if os.path.exists(os.path.join(mount.volume, "VOLUME")):
        mount.start()  # waits for no lock of the one before: it would say so
        assert "waiting for the previous daemon" not in mount.log_text()
        mount.stop()


@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
def test_a_mount_that_does_not_answer(start, preloaded, foreground):
    mount, command = start(preloaded("fail"), foreground)
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 1 and "does not answer" in output, output
    assert mount.path in output
    assert_nothing_is_left(mount, at_once=True)


@pytest.mark.skipif(not kvc_env.LONG, reason="takes the minute that the daemon waits for its first answer")
def test_a_mount_that_hangs(start, preloaded):
    mount, command = start(preloaded("hang"))
    output, _ = command.communicate(timeout=120 * kvc_env.SCALE)
    assert command.returncode == 1 and "does not answer" in output, output
    assert_nothing_is_left(mount, at_once=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_start_that_is_given_up(start, preloaded, number):
    mount, command = start(preloaded("hang"))
    wait_until(lambda: mount_entry(mount.path) is not None, SOON, "the kernel's mount is there")
    command.send_signal(number)
    command.wait(60 * kvc_env.SCALE)
    assert command.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 1)
    assert_nothing_is_left(mount, at_once=number != signal.SIGKILL)


def test_a_foreground_start_that_is_given_up(start, preloaded):
    mount, command = start(preloaded("hang"), foreground=True)
    wait_until(lambda: mount_entry(mount.path) is not None, SOON, "the kernel's mount is there")
    command.terminate()
    command.wait(60 * kvc_env.SCALE)
    assert_nothing_is_left(mount, at_once=True)


def test_unmounted_before_it_has_answered(start, preloaded):
    mount, command = start(preloaded("hang"))
    wait_until(lambda: mount_entry(mount.path) is not None, SOON, "the kernel's mount is there")
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 1, output
    assert_nothing_is_left(mount, at_once=True)


@pytest.mark.parametrize("point", ["attributes-asked", "epoch-made"])
def test_a_daemon_that_is_killed_at_its_start(start, point):
    """By the kernel that is out of memory, say: the command that waits for it takes its dead mount away."""
    mount, command = start(dict(os.environ, KVCACHEFS_KILL_POINT=point))
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 1 and "the daemon ended" in output, output
    assert_nothing_is_left(mount, at_once=True)


def test_what_a_killed_daemon_had_forked_is_waited_for(start, preloaded):
    mount, command = start(dict(preloaded("linger"), KVCACHEFS_KILL_POINT="attributes-asked"))
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 1 and "the daemon ended" in output, output
    assert_nothing_is_left(mount, at_once=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_given_up_while_the_volume_is_waited_for(start, new_mount, number):
    first = new_mount()
    with open(os.path.join(first.path, "file"), "wb"):
        assert run_command("umount", "--lazy", first.path).returncode == 0  # its daemon holds the volume until the file is closed
        mount = new_mount(start=False, volume=first.volume)
        mount, command = start(mount=mount)
        wait_until(lambda: len(processes_of(mount.volume)) > 2, SOON, "the daemon is there")
        command.send_signal(number)
        command.wait(60 * kvc_env.SCALE)
        wait_until(lambda: processes_of(mount.volume) == [first.pid], SOON, "only the first daemon is left")
    first._wait_for_end(60)
    assert_nothing_is_left(mount, at_once=False)


def test_a_volume_whose_lock_another_program_holds(start, new_mount):
    """It is refused; and what holds the lock is no daemon that would end by itself."""
    mount = new_mount()
    mount.stop()
    locks = glob.glob(os.path.join(mount.volume, "nodes", "*", "LOCK"))
    assert len(locks) == 1
    with open(locks[0], "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        _, command = start(mount=mount)
        command.terminate()
        command.communicate(timeout=60 * kvc_env.SCALE)
        assert mount_entry(mount.path) is None
    assert_nothing_is_left(mount, at_once=False)


def test_a_foreground_mount_that_is_unmounted_at_once_has_not_failed(start, preloaded):
    """A supervisor that restarts what fails would mount it again."""
    mount, command = start(preloaded("hang"), foreground=True)
    wait_until(lambda: mount_entry(mount.path) is not None, SOON, "the kernel's mount is there")
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert command.returncode == 0, output
    assert_nothing_is_left(mount, at_once=True)


def test_a_request_that_is_read_as_the_kernel_unmounts_is_no_failure(start, preloaded):
    mount, command = start(preloaded("race"), foreground=True)
    wait_until(lambda: mount_entry(mount.path) is not None and os.path.exists(os.path.join(mount.path, ".kvcachefs")), SOON, "it is mounted")
    # Busy for a moment: the kernel lets go of what was looked at when it has time.
    wait_until(lambda: subprocess.run(["fusermount3", "-u", mount.path], check=False).returncode == 0, SOON, "it is unmounted")
    output, _ = command.communicate(timeout=60 * kvc_env.SCALE)
    assert "Software caused connection abort" in output  # libfuse has seen it
    assert command.returncode == 0, output
    assert_nothing_is_left(mount, at_once=True)


@pytest.mark.needs_root
def test_a_daemon_that_cannot_be_started(new_mount):
    """By an ordinary user, because no limit of processes holds for root. The command never takes the place of the daemon."""
    user = 65534
    mount = new_mount(start=False)
    os.makedirs(mount.volume)
    for path in (mount.base, mount.path, mount.volume):
        os.chown(path, user, user)

    def lowered():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    result = run_command("mount", mount.volume, mount.path, preexec_fn=lowered)
    assert result.returncode == 1 and "starting the daemon: fork: " in result.stderr and "ulimit -u" in result.stderr, result.stderr
    assert os.listdir(mount.volume) == [] and mount_entry(mount.path) is None and not processes_of(mount.volume)
