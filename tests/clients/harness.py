"""What the tests hold in their hands: the directory under test, and the processes of one client library."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
REQUEST_TIMEOUT_S = 120
IMPORT_TIMEOUT_S = 120


class ClientFailed(AssertionError):
    """A client process did not end well; the message carries the end of its log."""


def mounted_type(path: pathlib.Path) -> str | None:
    """The file system type mounted exactly at `path`, or None."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if fields[4] == str(path):
                return fields[fields.index("-") + 1]
    return None


class Volume:
    """The directory under test: a kvcachefs mount, or a plain directory where remounting means nothing."""

    def __init__(self, directory: pathlib.Path, binary: str | None, volume: str | None, options: str):
        self.path = directory
        self.binary = binary
        self._volume = volume
        self._options = options

    @property
    def is_mount(self) -> bool:
        return self.binary is not None

    def remount(self) -> None:
        """A clean stop and a new start of the daemon: what was stored must be found by what the volume holds.

        Ends the whole run when that fails: without a mount every later test would only repeat the failure."""
        if not self.is_mount:
            return
        try:
            self._remount()
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            pytest.exit(f"remount failed: {failure}", returncode=1)

    def status(self) -> dict:
        return json.loads((self.path / ".kvcachefs" / "status").read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def room_for(self, size_bytes: int):
        """Meanwhile the mount has room for so many bytes beside what it holds already, and evicts what is beyond that. A plain
        directory takes everything. Ends with the count of files that were evicted: `with volume.room_for(n) as evicted: ...`"""
        evicted = {"objects": 0}
        if not self.is_mount:
            yield evicted
            return
        deadline = time.monotonic() + 20
        while True:  # what earlier tests left is given back
            os.setxattr(self.path, "user.kvcachefs.flush", b"1")
            before = self.status()
            if before["capacity"]["reclaimable_bytes"] == before["capacity"]["live_bytes"] == 0 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        capacity = before["capacity"]["physical_bytes"] + size_bytes
        os.setxattr(self.path, "user.kvcachefs.option.capacity", str(capacity).encode())
        try:
            yield evicted
            after = self.status()
            evicted["objects"] = after["evictions"]["objects"] - before["evictions"]["objects"]
            refused = after["errors"]["no_space"] - before["errors"]["no_space"]
            assert refused == 0, f"{refused} calls were answered ENOSPC"
        finally:
            os.setxattr(self.path, "user.kvcachefs.option.capacity", b"90%")

    def _remount(self) -> None:
        self.unmount()
        self.mount()

    def unmount(self) -> None:
        self._command("umount", str(self.path))
        if mounted_type(self.path) is not None:
            raise AssertionError(f"{self.path}: still mounted after '{self.binary} umount'")

    def mount(self) -> None:
        self._command("mount", self._volume, str(self.path), "-o", self._options)
        if mounted_type(self.path) != "fuse.kvcachefs":
            raise AssertionError(f"{self.path}: not mounted after '{self.binary} mount' returned success")

    def _command(self, *arguments: str) -> None:
        # The daemon that `mount` leaves behind may keep inherited pipes open, so output goes to a file.
        log = self.path.parent / "remount.log"
        with open(log, "ab") as file:
            done = subprocess.run(
                [self.binary, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=120, check=False
            )
        if done.returncode != 0:
            raise AssertionError(
                f"'{self.binary} {' '.join(arguments)}' ended with {done.returncode}:\n{tail(log)}"
            )


class Nodes:
    """Two nodes that share a volume, mounted beside the directory under test: what one stores the other finds."""

    def __init__(self, volume: Volume):
        self._is_mount = volume.is_mount
        if not volume.is_mount:
            self._mounts = [volume, volume]
            self.paths = [volume.path, volume.path]
            return
        home = volume.path.parent / "nodes"
        self.paths = [home / "a", home / "b"]
        self._mounts = []
        (home / "volume").mkdir(parents=True)
        for path in self.paths:
            path.mkdir()
            mount = Volume(path, volume.binary, str(home / "volume"), f"memory=512M,node={path.name}")
            mount.mount()
            self._mounts.append(mount)

    def meet(self) -> None:
        """All that was stored so far on either is seen on both."""
        if not self._is_mount:
            return
        for name in ("flush", "refresh"):
            for path in self.paths:
                os.setxattr(path, f"user.kvcachefs.{name}", b"1")

    def status(self) -> list[dict]:
        return [mount.status() for mount in self._mounts]

    def close(self) -> None:
        if self._is_mount:
            for mount in self._mounts:
                mount.unmount()


def tail(path: pathlib.Path, lines: int = 60) -> str:
    if not path.exists():
        return "(no log)"
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


class Run:
    """One forked client process."""

    def __init__(self, client: "Client", request_id: int, operation: str, log: pathlib.Path, result: pathlib.Path):
        self._client = client
        self._id = request_id
        self._operation = operation
        self._log = log
        self._result = result

    def ended(self) -> bool:
        return self._client.said(self._id, "status") is not None

    def failed(self) -> bool:
        return self.ended() and self._client.said(self._id, "status")["status"] != 0

    def wait(self):
        """The operation's return value; raises ClientFailed when the process failed or hung."""
        answer = self._client.answer(self._id, "status", REQUEST_TIMEOUT_S)
        what = f"{self._client.module}.{self._operation}"
        if answer is None:
            self._kill()
            raise ClientFailed(f"{what}: no end within {REQUEST_TIMEOUT_S} s\n{tail(self._log)}")
        if answer["status"] != 0:
            raise ClientFailed(f"{what}: exit status {answer['status']}\n{tail(self._log)}")
        return json.loads(self._result.read_text(encoding="utf-8"))

    def _kill(self) -> None:
        started = self._client.said(self._id, "pid")
        if started is not None and not self.ended():
            os.kill(started["pid"], signal.SIGKILL)


class Client:
    """The processes of one client library: one that imports it, and a fork of that one for each operation."""

    def __init__(self, module: str, scratch: pathlib.Path, environment: dict[str, str]):
        self.module = module
        self._scratch = scratch
        self._next_id = 0
        self._answers: dict[tuple[int, str], dict] = {}
        self._changed = threading.Condition()
        self._log = scratch / f"{module}.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(HERE / "client_process.py"), f"workers.{module}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=scratch, text=True,
            )
        threading.Thread(target=self._read_answers, daemon=True).start()
        if self.answer(-1, "imported", IMPORT_TIMEOUT_S) is None:
            self.close()
            raise ClientFailed(f"{module}: cannot be imported\n{tail(self._log)}")

    def start(self, operation: str, **arguments) -> Run:
        request_id = self._next_id
        self._next_id += 1
        stem = self._scratch / f"{self.module}-{request_id}-{operation}"
        run = Run(self, request_id, operation, stem.with_suffix(".log"), stem.with_suffix(".json"))
        request = {"id": request_id, "op": operation, "args": arguments,
                   "log": str(stem.with_suffix(".log")), "result": str(stem.with_suffix(".json"))}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return run

    def run(self, operation: str, **arguments):
        """One operation in a process of its own, to its end."""
        return self.start(operation, **arguments).wait()

    def together(self, *operations: tuple[str, dict]) -> list:
        """Several operations at once, each in a process of its own. All get a `meet` argument: where they wait for
        one another (workers.common.Meeting), so that they really overlap."""
        meeting = self._scratch / f"{self.module}-meeting-{self._next_id}"
        meeting.mkdir()
        runs = [
            self.start(operation, meet={"dir": str(meeting), "who": who, "of": len(operations)}, **arguments)
            for who, (operation, arguments) in enumerate(operations)
        ]
        # The first to fail releases those that wait for it.
        self._wait_until(lambda: any(run.failed() for run in runs) or all(run.ended() for run in runs))
        if not all(run.ended() for run in runs):
            (meeting / "cancelled").touch()
        results, failures = [], []
        for run in runs:
            try:
                results.append(run.wait())
            except ClientFailed as failure:
                failures.append(str(failure))
        if failures:
            raise ClientFailed("\n\n".join(failures))
        return results

    def answer(self, request_id: int, kind: str, timeout_s: float) -> dict | None:
        """What was said about a request; None when nothing came in time or the importing process has ended."""
        self._wait_until(lambda: self.said(request_id, kind) or self._ended(), timeout_s)
        return self.said(request_id, kind)

    def said(self, request_id: int, kind: str) -> dict | None:
        return self._answers.get((request_id, kind))

    def _wait_until(self, condition, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        with self._changed:
            self._changed.wait_for(condition, timeout_s)

    def close(self) -> None:
        """Ends the importing process; forked ones that still run die with it."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def _ended(self) -> bool:
        return (-2, "ended") in self._answers

    def _read_answers(self) -> None:
        for line in self._process.stdout:
            answer = json.loads(line)
            kind = next(kind for kind in ("imported", "pid", "status") if kind in answer)
            self._note(answer.get("id", -1), kind, answer)
        self._note(-2, "ended", {})

    def _note(self, request_id: int, kind: str, answer: dict) -> None:
        with self._changed:
            self._answers[(request_id, kind)] = answer
            self._changed.notify_all()


def check_a_third(client: Client, volume: Volume, count: int, room_bytes: int, remembers: bool = False, **arguments) -> dict:
    """The worker's `serve` stores `count` chunks, three times what there is room for: by one engine twice, which may remember what
    it stored, then by another. Every request must end with the right bytes; what was evicted is a miss, and is stored again.
    `remembers`: the client does not look again for names that it knows."""
    with volume.room_for(room_bytes) as evicted:
        first = client.run("serve", **arguments, passes=2)
        second = client.run("serve", **arguments, passes=1)
    for served, passes in ((first, 2), (second, 1)):
        assert served["loaded"] + served["absent"] + served["gone"] == passes * count, served
    assert first["absent"] >= count, first  # the first pass at least
    if not volume.is_mount:
        assert (first["loaded"], second["loaded"]) == (count, count)
        return first
    assert evicted["objects"] >= count // 2, evicted
    assert second["absent"] + second["gone"] >= count // 5, f"{second}: more was there than there is room for"
    assert remembers or second["gone"] == 0, f"{second}: what was looked up a moment ago was evicted"
    return first


def compile_shims(target: pathlib.Path) -> None:
    """Builds shim/*.c into shared objects whose soname is the file name that clients ask for."""
    for source in sorted((HERE / "shim").glob("*.c")):
        name = f"lib{source.stem}.so"
        subprocess.run(
            ["gcc", "-std=c17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{name}",
             "-o", str(target / name), str(source), "-ldl"],
            check=True,
        )


def flip_one_byte(path: pathlib.Path) -> None:
    """Damages one byte in the middle of a file, as a test that the comparison notices it."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x40]))
