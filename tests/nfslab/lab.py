"""A lab of NFS nodes, and kvcachefs mounted on them. See README.md for what a lab has to be."""

import argparse
import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
VOLUME, MOUNTPOINT = "/mnt/nfs/volume", "/mnt/kv"
KIB, MIB = 1 << 10, 1 << 20
LIMIT = 300  # seconds: only a hang takes so long


class LabFailed(Exception):
    """The lab itself did not do what was asked."""


class Hung(Exception):
    """A command on a node did not come back."""


class Lab:
    def __init__(self, directory, binary, nodes=2, **environment):  # of the lab: MEM, LEASE, ...
        self.program = os.path.join(os.path.realpath(directory), "nfslab")
        if not os.access(self.program, os.X_OK):
            raise LabFailed(f"{self.program} is not a program")
        self.share = os.path.realpath(tempfile.mkdtemp(prefix="kvcachefs-nfslab-"))
        atexit.register(shutil.rmtree, self.share, ignore_errors=True)
        for name in ("node.py", "chunks.py"):
            shutil.copy(os.path.join(HERE, name), self.share)
        shutil.copy(binary, os.path.join(self.share, "kvcachefs"))
        # An instance of its own. It goes down with this process, whatever ends that.
        self.environment = {**os.environ, "LAB": f"kvc{os.getpid()}", "OWNER": str(os.getpid()), "DISK": "8G", **environment}
        atexit.register(self.down)
        if self.command("up", str(nodes), self.share, timeout=900, check=False).returncode != 0:
            self.command("up", str(nodes), self.share, timeout=900)  # nodes give up on their boot after 30 s, which a busy machine takes
        self.nodes = [Node(self, f"n{number}") for number in range(1, nodes + 1)]
        self.version = self.options = None
        self._files = 0

    def command(self, *arguments, timeout=LIMIT, check=True):
        try:
            done = subprocess.run([self.program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                                  env=self.environment, errors="replace", check=False)
        except subprocess.TimeoutExpired:
            raise Hung(f"nfslab {' '.join(arguments)}: no answer for {timeout} s") from None
        if check and done.returncode != 0:
            raise LabFailed(f"nfslab {' '.join(arguments)}: exit code {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
        return done

    def down(self):
        with contextlib.suppress(Hung):
            self.command("down", check=False)

    def mount_nfs(self, version, options="", nodes=None):
        self.version, self.options = version, options
        for node in nodes or self.nodes:
            self.command("mount", version, options, node.name)
            node.options = node.text("awk '$2 == \"/mnt/nfs\" { print $4 }' /proc/mounts").strip()

    def fault(self, *arguments, check=True):
        return self.command("fault", *arguments, check=check).stdout

    def round_trip(self, milliseconds):
        """Adds to what each packet between a node and the server takes; 0 takes that away."""
        for name in ("srv", *(node.name for node in self.nodes)):
            self.fault("latency", f"{milliseconds / 2:g}", name)

    def file(self, content=None):
        """A path that host and nodes have in common."""
        self._files += 1
        path = os.path.join(self.share, f"file{self._files}")
        if content is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        return path

    def new_volume(self, version, options="", **mount_options):
        """An empty volume, mounted by NFS and by kvcachefs on all nodes."""
        for node in self.nodes:
            node.stop()
        self.mount_nfs(version, options)
        self.nodes[0].run(f"rm -rf {VOLUME}")
        for node in self.nodes:
            node.run("rm -rf /var/lib/kvcachefs")
            node.start(**mount_options)


class Background:
    """A command that runs on a node meanwhile; what it says is collected as it comes."""

    def __init__(self, process):
        self.process = process
        self.said = []
        self._news = threading.Condition()
        self._ended = False
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.process.stdout:
            with self._news:
                try:
                    self.said.append(json.loads(line))
                except ValueError:  # the node was cut off within it
                    break
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def line(self, timeout=LIMIT):
        """Waits for the first line."""
        with self._news:
            if not self._news.wait_for(lambda: self.said or self._ended, timeout) or not self.said:
                raise Hung(f"{self.process.args[-1]}: says nothing")
            return self.said[0]

    def result(self, timeout=LIMIT):
        """The last line, once it has ended; {} where it said nothing."""
        with self._news:
            if not self._news.wait_for(lambda: self._ended, timeout):
                raise Hung(f"{self.process.args[-1]}: no end for {timeout} s")
        return self.said[-1] if self.said else {}

    def stop(self):
        self.process.kill()
        self.process.wait()


class Node:
    def __init__(self, lab, name):
        self.lab, self.name = lab, name
        self.mounted = False
        self.mount_options = {}
        self.options = ""

    # Commands

    def run(self, command, timeout=LIMIT, check=True):
        return self.lab.command("exec", self.name, f"timeout -k 5 {timeout} sh -c {quote(command)}", timeout=timeout + 30, check=check)

    def text(self, command, **arguments):
        return self.run(command, **arguments).stdout

    def _call(self, name, arguments):
        path = self.lab.file(json.dumps(arguments))
        return f"python3 -B {self.lab.share}/node.py {name} {path}"

    def do(self, name, timeout=LIMIT, **arguments):
        """One command of node.py; its answer."""
        done = self.run(self._call(name, arguments), timeout)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def begin(self, name, **arguments):
        command = [self.lab.program, "exec", self.name, f"timeout -k 5 900 {self._call(name, arguments)}"]
        return Background(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                           env=self.lab.environment))

    def calls(self, *steps):
        return self.do("calls", steps=steps)["answers"]

    # The mount

    def start(self, **options):
        self.mount_options = options or self.mount_options  # those of the last time, where none are given
        text = ",".join(f"{name}={value}" for name, value in self.mount_options.items())
        self.run(f"mkdir -p {MOUNTPOINT} 2>/dev/null; {self.lab.share}/kvcachefs mount {VOLUME} {MOUNTPOINT} {'-o ' + text if text else ''}")
        self.mounted = True

    def stop(self, timeout=120):
        if self.mounted:
            self.run(f"{self.lab.share}/kvcachefs umount {MOUNTPOINT}", timeout)
            self.mounted = False

    def pid(self):
        return self.text(f"pidof {self.lab.share}/kvcachefs || pidof kvcachefs", check=False).strip()

    def kill(self):
        """The daemon alone: its dead mount stays until start(), so that writers that go on do not write into the bare directory."""
        self.run(f"kill -9 {self.pid()}; true")
        self.mounted = False

    def set(self, name, path="", timeout=LIMIT, check=True):
        return self.run(f"setfattr -n user.kvcachefs.{name} -v 1 {MOUNTPOINT}/{path}", timeout, check)

    def refresh(self, timeout=LIMIT):
        self.set("refresh", timeout=timeout)

    def flush(self, timeout=LIMIT):
        self.set("flush", timeout=timeout)

    def drop_caches(self):
        """What of the chunks is in RAM, here and in the kernel, goes."""
        self.set("drop_caches")
        self.run("echo 3 > /proc/sys/vm/drop_caches")

    def status(self):
        return json.loads(self.text(f"{self.lab.share}/kvcachefs status --json {MOUNTPOINT}", timeout=60))

    def log(self, lines=30):
        return self.text(f"tail -n {lines} {MOUNTPOINT}/.kvcachefs/log", check=False, timeout=20)

    def fsck(self):
        done = self.run(f"{self.lab.share}/kvcachefs fsck {VOLUME} --node {self.name}", timeout=600, check=False)
        return done.returncode, done.stdout + done.stderr

    # What went over the wire

    def requests(self):
        """{operation: how many} of the NFS mount, and how many bytes were read from the server."""
        counts = {}
        for line in self.lab.command("stats", self.name).stdout.splitlines():
            found = re.match(r"\S+ /mnt/nfs (\w+):\s+ops (\d+)", line)
            if found:
                counts[found[1]] = counts.get(found[1], 0) + int(found[2])
        return counts


def difference(after, before):
    return {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


# --- programs -------------------------------------------------------------------------------------------------------

COLUMNS = "{:<46} {:>22}  {:<18}"


class Report:
    """A table of figures beside their bars, and what was wrong: only that decides the exit code."""

    def __init__(self, arguments):
        self.failures = []
        self.missed = 0
        self._cases, self._junit, self._title = [], arguments.junit, ""

    def title(self, text):
        self._title = text
        load = " ".join(f"{each:.1f}" for each in os.getloadavg()[:2])
        print(f"\n== {text}  (load of this machine {load})", flush=True)

    def figure(self, what, value, bar=None, met=None):
        """`met`: whether the figure meets its bar; it is said, and decides nothing."""
        verdict = "" if met is None else "met" if met else "MISSED"
        self.missed += met is False
        print(COLUMNS.format(what, value, f"bar {bar}" if bar else "") + verdict, flush=True)

    def check(self, what, right, told=""):
        print(f"{'ok    ' if right else 'FAILED'} {what}{'' if right or not told else ': ' + str(told)[:2000]}", flush=True)
        if not right:
            self.failures.append(what)
        self._cases.append((f"{self._title}: {what}", None if right else str(told)[:2000]))
        return right

    def end(self):
        print(f"\n{len(self.failures)} failed, {self.missed} bars missed", flush=True)
        for failure in self.failures:
            print(f"FAILED {failure}")
        if self._junit:
            self._write_junit()
        sys.exit(1 if self.failures else 0)


    def _write_junit(self):
        suite = ElementTree.Element("testsuite")
        for name, failure in self._cases:
            case = ElementTree.SubElement(suite, "testcase", name=name)
            if failure is not None:
                ElementTree.SubElement(case, "failure", message=failure)
        ElementTree.ElementTree(suite).write(self._junit)


def arguments_of(description, versions=("4.2",), round_trips=(0,), extra=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lab", required=True, help="directory of the lab")
    parser.add_argument("--bin", default=os.environ.get("KVCACHEFS_BIN"), help="the kvcachefs command (default: KVCACHEFS_BIN)")
    parser.add_argument("--vers", nargs="+", default=list(versions), help="versions of NFS")
    parser.add_argument("--rtt", nargs="+", type=float, default=list(round_trips), help="milliseconds that are added to a round trip")
    parser.add_argument("--junit", help="file for what was checked, as JUnit XML")
    if extra:
        extra(parser)
    arguments = parser.parse_args()
    if not arguments.bin or not os.access(arguments.bin, os.X_OK):
        sys.exit(f"--bin {arguments.bin!r} is not a program")
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    return arguments


def start(arguments, **options):
    """The lab; where it cannot boot that is said, and counts as failed."""
    try:
        return Lab(arguments.lab, arguments.bin, **options)
    except (LabFailed, Hung, OSError) as error:
        sys.exit(f"FAILED the lab does not boot: {error}")


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise Hung(f"waited {seconds} s until {what}")
        time.sleep(0.2)
    return value
