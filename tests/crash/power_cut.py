#!/usr/bin/env python3
"""Power loss in a virtual machine, round after round: eight processes write through a mount, the machine loses its page cache in the
middle, boots again, mounts again, and everything is judged by the manifest.

  power_cut.py --lab COMMAND --bin kvcachefs [--rounds N] [--durability none|close|sync]

COMMAND is a lab of virtual machines with these verbs, whose node `srv` has a disk of its own at --disk: `up N DIRECTORY` boots
and shows DIRECTORY at the same path in the nodes; `exec NODE COMMAND`; `fault crash NODE`; `fault start NODE`; `down`. Not part of
tests/run.sh. The manifest lies in DIRECTORY, which is of the host and survives.

With `sync` everything acknowledged must be there. With `close` and `none` the page cache's loss may take what was acknowledged, but
every name shows some version as a whole, or nothing.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "support")]

# pylint: disable=wrong-import-position
import judge
import manifest
from writers import write_until_dead

WRITERS = 8
MOUNT = "/tmp/power-cut"


def in_node_write(share, round_number, seed, names):
    """Writers as processes of the node; they end with it."""
    for number in range(WRITERS):
        if os.fork() == 0:
            present = [name for name in names if name.startswith(f"w{number}n") and ".tmp" not in name]
            write_until_dead(MOUNT, os.path.join(share, "manifest"), number, round_number, seed, present)
            os._exit(0)
    while True:
        time.sleep(1)


def in_node_check(share, durability):
    manifest.Expected = judge.Everything
    names, acknowledged = manifest.load(os.path.join(share, "manifest"))
    if durability != "sync":
        judge.allow_what_was_not_promised(names)
    found, problems = judge.check(MOUNT, names)
    if problems:
        sys.exit("\n".join(problems[:10]))
    manifest.settle(os.path.join(share, "manifest"), {name: version for name, version in found.items() if version})
    print(f"{acknowledged} acknowledged, {len(names)} names known, {sum(1 for version in found.values() if version)} present")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", required=True)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--disk", default="/srv/disk", help="where the node's disk is mounted")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--durability", choices=["none", "close", "sync"], default="sync")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    share = tempfile.mkdtemp(prefix="kvcachefs-power-cut.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    os.mkdir(os.path.join(share, "manifest"))
    shutil.copytree(HERE, os.path.join(share, "crash"))
    shutil.copytree(os.path.join(os.path.dirname(HERE), "support"), os.path.join(share, "support"))
    shutil.copy(arguments.bin, os.path.join(share, "kvcachefs"))

    def lab(*words, wait=True, check=True):
        process = subprocess.Popen([arguments.lab, *words], stdin=subprocess.DEVNULL)
        if wait and process.wait() != 0 and check:
            sys.exit(f"power_cut.py: {' '.join(words)} failed")
        return process

    def node(command, **how):
        return lab("exec", "srv", command, **how)

    volume = f"{arguments.disk}/power-cut"
    mount = (
        f"mountpoint -q {arguments.disk} && mkdir -p {volume} {MOUNT} && "
        f"{share}/kvcachefs mount {volume} {MOUNT} -o durability={arguments.durability},memory=256M"
    )
    script = f"timeout 300 python3 {share}/crash/power_cut.py"
    moments = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    lab("up", "1", share)
    try:
        node(mount)
        for round_number in range(1, arguments.rounds + 1):
            names, _ = manifest.load(os.path.join(share, "manifest"))
            present = ",".join(names)
            writing = node(f"{script} --in-node-write {round_number} {arguments.seed} '{present}'", wait=False)
            time.sleep(moments.uniform(0.5, 5))
            lab("fault", "crash", "srv")
            writing.kill()
            writing.wait()
            lab("fault", "start", "srv")
            node(mount)
            print(f"round {round_number}: ", end="", flush=True)
            node(f"{script} --in-node-check {arguments.durability}")
        node(f"{share}/kvcachefs umount {MOUNT} && {share}/kvcachefs fsck {volume}")
    finally:
        lab("down", check=False)
        shutil.rmtree(share, ignore_errors=True)


if __name__ == "__main__":
    here = os.path.dirname(HERE)
    if sys.argv[1:2] == ["--in-node-write"]:
        in_node_write(here, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
    elif sys.argv[1:2] == ["--in-node-check"]:
        in_node_check(here, sys.argv[2])
    else:
        main()
