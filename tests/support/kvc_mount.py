"""Mounts for the tests: started in fresh temporary directories, always cleaned up, also when the daemon hangs or the run is killed."""

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import kvc_env
import kvc_process

PR_SET_PDEATHSIG = 1
SOON = 60  # seconds, for wait_until(): only a hang takes so long, also on a machine that does much else
_libc = ctypes.CDLL(None, use_errno=True)


class Watchdog:
    """The one helper process of a test run (watchdog.py)."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watchdog.py")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", script], stdin=subprocess.PIPE, start_new_session=True
        )
        self._owner = os.getpid()
        kvc_process.close_in_children.append(self._process.stdin.fileno())

    def tell(self, **command):
        if os.getpid() != self._owner:  # a forked child shares the pipe but not the responsibility
            return
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def stop(self):
        kvc_process.close_in_children.remove(self._process.stdin.fileno())
        self._process.stdin.close()
        self._process.wait()


_watchdog = None


def watchdog():
    global _watchdog
    if _watchdog is None:
        _watchdog = Watchdog()
    return _watchdog


def stop_watchdog():
    global _watchdog
    if _watchdog is not None:
        _watchdog.stop()
        _watchdog = None


class MountFailed(Exception):
    """The daemon refused to start; `output` is what it said."""

    def __init__(self, returncode, output):
        super().__init__(f"mount failed with exit code {returncode}: {output}")
        self.returncode = returncode
        self.output = output


def wait_until(condition, seconds, what):
    """Polls condition() until it is true. The deadline only turns a hang into a failure."""
    deadline = time.monotonic() + seconds * kvc_env.SCALE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"timed out after {seconds * kvc_env.SCALE:g} s waiting until {what}"
        time.sleep(0.01)


def order(path, name):
    """Sets user.kvcachefs.NAME and waits until that is done. Any signal for the caller ends the wait, also one that it ignores: where
    another thread starts processes, each may leave a SIGCHLD."""
    while True:
        try:
            return os.setxattr(path, f"user.kvcachefs.{name}", b"1")
        except InterruptedError:
            pass


def mountinfo_text(field):
    """A field of /proc/self/mountinfo as it was before the kernel wrote blanks, '#' and backslashes as octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mount_entry(path):
    """(fstype, mount options, super options, source) of the topmost mount at path, or None. Never touches path itself."""
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, right = line.rstrip("\n").split(" - ", 1)
            fields = left.split(" ")
            if mountinfo_text(fields[4]) == path:
                fstype, source, super_options = right.split(" ", 2)
                found = (fstype, fields[5], super_options, mountinfo_text(source))
    return found


def process_is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def make_temp_dir():
    path = os.path.realpath(tempfile.mkdtemp(prefix="kvcachefs-test-"))
    os.chmod(path, 0o755)  # tests with a second uid must be able to pass through
    watchdog().tell(op="dir", path=path)
    return path


def remove_temp_dir(path):
    shutil.rmtree(path, ignore_errors=True)
    watchdog().tell(op="undir", path=path)


def option_text(options):
    """'-o' value of a dict; None or True as a value means a bare word. KVCACHEFS_TEST_OPTIONS fill in what is not set."""
    merged = {}
    for part in kvc_env.EXTRA_OPTIONS:
        name, _, value = part.partition("=")
        merged[name] = value or None
    merged.update(options or {})
    return ",".join(name if value is None or value is True else f"{name}={value}" for name, value in merged.items())


def mount_command(volume, path, options=None, foreground=True):
    command = [kvc_env.BINARY, "mount", volume, path]
    text = option_text(options)
    if text:
        command += ["-o", text]
    if foreground:
        command.append("-f")
    return command


def run_command(*arguments, timeout=300, **kwargs):
    """Runs `kvcachefs ARGUMENTS`; returns the completed process with stdout and stderr as text."""
    return subprocess.run(
        [kvc_env.BINARY, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout * kvc_env.SCALE,
        check=False,
        **kwargs,
    )


class Mount:
    """One volume and one mountpoint; in plain mode both are one directory and start, stop and kill do nothing."""

    def __init__(self, base, options=None, user=None, volume=None):
        self.base = base
        self.options = dict(options or {})
        self.user = user  # uid and gid to run the daemon as
        self.plain = kvc_env.PLAIN
        self.volume = volume or os.path.join(base, "volume")
        self.path = os.path.join(base, "mnt")
        self.log_path = os.path.join(base, "daemon.log")
        self.process = None
        os.makedirs(self.path, exist_ok=True)
        if user is not None:
            os.makedirs(self.volume, exist_ok=True)
            for path in (base, self.path, self.volume):
                os.chown(path, user, user)

    def start(self, **changed_options):
        """Mounts in the foreground and waits until the mount is there. Options given here stay for later starts."""
        self.options.update(changed_options)
        if self.plain:
            return self
        assert self.process is None, "already mounted"
        parent = os.getpid()
        user = self.user

        def in_child():
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                mount_command(self.volume, self.path, self.options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=in_child,
            )
        watchdog().tell(op="mount", path=self.path, pid=self.process.pid)
        try:
            wait_until(lambda: self.process.poll() is not None or self._answers(), 120, "the mount appears")
        except BaseException:
            self.destroy()
            raise
        if self.process.poll() is not None:
            returncode = self.process.returncode
            self.process = None
            watchdog().tell(op="unmount", path=self.path)
            raise MountFailed(returncode, self.log_text(self.log_start))
        return self

    def _answers(self):
        """The mount is there and is not the dead one of a daemon killed before. In this order: the dead one goes before the new one comes."""
        try:
            os.statvfs(self.path)
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                return False  # a mount of another user answers EACCES: it is alive
        return self._mounted()

    def _mounted(self):
        entry = mount_entry(self.path)
        return entry is not None and entry[0].startswith("fuse")

    def log_text(self, start=0):
        """What was logged before the call. The daemon writes its log on a thread of its own, so the file is read once it has stood still for a moment."""
        text = None
        for _ in range(25):
            has_ended = self.process is None or self.process.poll() is not None
            before, text = text, self._read_log(start)
            if text == before or has_ended:
                break
            time.sleep(0.2)
        return text

    def _read_log(self, start):
        try:
            with open(self.log_path, "rb") as log:
                log.seek(start)
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def wait_for_log(self, text, count=1):
        """Until `text` was logged so many times: the daemon writes its log on a thread of its own, which may get its turn late."""
        wait_until(lambda: self._read_log(0).count(text) >= count, SOON, f"the log has {count} of {text!r}")

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.plain or (self.process is not None and self.process.poll() is None and self._mounted())

    def stop(self, seconds=120):
        """`kvcachefs umount`, then waits for the daemon to end; both must succeed."""
        if self.plain or self.process is None:
            return
        result = run_command("umount", self.path, timeout=seconds)
        # A mount namespace that a test beside this one makes has the mounts of all tests for a moment: the daemon ends with that moment.
        goes_on_elsewhere = result.returncode != 0 and "in another mount namespace" in result.stderr
        assert (
            result.returncode == 0 or goes_on_elsewhere
        ), f"umount: exit code {result.returncode}: {result.stdout}{result.stderr}\n{self.log_text()[-4000:]}"
        assert not self._mounted(), "umount came back, the mount is still there"
        self._wait_for_end(seconds)

    def terminate(self, seconds=120):
        """SIGTERM is a clean unmount."""
        self.process.send_signal(signal.SIGTERM)
        self._wait_for_end(seconds)
        assert not self._mounted(), "the daemon ended by SIGTERM left its mount behind"

    def _wait_for_end(self, seconds):
        try:
            returncode = self.process.wait(seconds * kvc_env.SCALE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon still runs {seconds} s after its unmount") from None
        self.process = None
        watchdog().tell(op="unmount", path=self.path)
        assert returncode == 0, f"the daemon ended with {returncode}:\n{self.log_text()[-4000:]}"

    def kill(self):
        """kill -9 of the daemon; leaves the dead mountpoint (ENOTCONN) as a crash would."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def remount(self, **changed_options):
        self.stop()
        return self.start(**changed_options)

    def destroy(self):
        """Whatever state this is in: no process and no mount stays. Never raises."""
        if self.process is not None:
            try:
                if self.process.poll() is None and self._mounted():
                    run_command("umount", self.path, timeout=20)
                    self.process.wait(10 * kvc_env.SCALE)
            except (subprocess.TimeoutExpired, OSError):
                pass
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None
        while mount_entry(self.path) is not None:
            if subprocess.run(["umount", "-l", self.path], stderr=subprocess.DEVNULL, check=False).returncode != 0:
                if (
                    subprocess.run(
                        ["fusermount3", "-u", "-z", self.path], stderr=subprocess.DEVNULL, check=False
                    ).returncode
                    != 0
                ):
                    break
        watchdog().tell(op="unmount", path=self.path)

    def status(self):
        result = run_command("status", "--json", self.path)
        assert result.returncode == 0, f"status --json: {result.returncode}: {result.stderr}"
        return json.loads(result.stdout)

    def drain(self):
        """Waits until everything written so far is on the volume."""
        if not self.plain:
            order(self.path, "flush")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.destroy()
