#!/usr/bin/env python3
"""A node that is gone is tended by the other one over NFS: what was removed of it comes back; where it was only away it finds out, and what it stores
then counts for nobody. And where its lock stays, nobody touches its part."""

import time

from lab import KIB, MIB, MOUNTPOINT, VOLUME, Hung, LabFailed, Report, arguments_of, start, wait_until

CHUNKS, BYTES = 60, 2 * MIB
AFTER_S, LEASE_S = 60, 10  # of the option; of the server of the lab


def names_of(node):
    return [f"{node.name}/{index}" for index in range(CHUNKS)]


def used_mib(node, part):
    return int(node.text(f"du -sm {VOLUME}/nodes/{part.name}").split()[0])


def caretaker(node):
    return node.status()["caretaker"]


def stored(a, b):
    a.do("write", root=MOUNTPOINT, names=names_of(a), sizes=[BYTES])
    a.flush()
    b.refresh()


def remove_half(a, b):
    gone = names_of(a)[: CHUNKS // 2]
    b.calls(*(["unlink", f"{MOUNTPOINT}/{name}"] for name in gone))
    b.flush()
    return gone


def check_left(report, what, node, other):
    got = node.do("verify", root=MOUNTPOINT, names=names_of(other), timeout=300)
    report.check(f"{what}: {node.name} reads what is left of {other.name}", got["read"] == CHUNKS // 2 and not got["wrong"] and not got["errors"],
                 [got["read"], got["wrong"][:3], got["errors"][:3]])


def come_back(report, lab, what, a, b):
    """a's machine, mounted by NFS again; both trees are one then."""
    a.start()
    for node in (a, b, a):
        node.flush()
        node.refresh()
    trees = [node.do("tree", root=MOUNTPOINT) for node in (a, b)]
    report.check(f"{what}: one tree on both", trees[0] == trees[1], sorted(set(trees[0]["paths"]) ^ set(trees[1]["paths"]))[:6])
    check_left(report, what, a, a)


def reboot(lab, node):
    lab.fault("start", node.name)
    node.mounted = False
    lab.mount_nfs(lab.version, lab.options, [node])


def given_back(report, lab, what, a, b, since):
    # NFS 3 gives back whole packs, and the rest does not come while a turn waits for it.
    chunks, waits_s = (CHUNKS // 3, 30) if lab.version == "3" else (CHUNKS // 2 - 4, 0)
    before = used_mib(b, a)
    remove_half(a, b)
    wait_until(lambda: caretaker(b)["returned_bytes"] >= chunks * BYTES, 240, "what was removed came back")
    took = time.monotonic() - since
    # That is told at the end of the turn, which lasts 10 s at least.
    bar = AFTER_S + LEASE_S + 10 + waits_s
    report.figure(f"{what}: seconds from the end of its daemon until the space is back", f"{took:.0f}", f"<= {bar}", took <= bar)
    after = used_mib(b, a)
    report.check(f"{what}: so much less is on the volume", after <= before - chunks * BYTES // MIB, [before, after])
    check_left(report, what, b, a)


def machine_dies(report, lab, a, b):
    stored(a, b)
    lab.fault("crash", a.name)
    if lab.version == "3":
        since = time.monotonic()
        remove_half(a, b)
        time.sleep(AFTER_S + 45)
        told = caretaker(b)
        report.check("its machine dies: NFS 3 keeps its lock, nobody tends it", told["turns"] == 0, told)
        check_left(report, "its machine dies", b, a)
    else:
        given_back(report, lab, "its machine dies", a, b, time.monotonic())
    reboot(lab, a)
    come_back(report, lab, "its machine dies", a, b)


def daemon_dies(report, lab, a, b):
    stored(a, b)
    a.kill()
    given_back(report, lab, "its daemon dies", a, b, time.monotonic())
    come_back(report, lab, "its daemon dies", a, b)


def was_only_away(report, lab, a, b):
    """Its machine stands until it was tended, and goes on under load."""
    stored(a, b)
    writing = a.begin("write", root=MOUNTPOINT, names=[f"late/{index}" for index in range(200)], sizes=[300 * KIB], again=True)
    writing.line()
    lab.fault("pause", a.name)
    gone = remove_half(a, b)
    wait_until(lambda: caretaker(b)["turns"] >= 1, AFTER_S + LEASE_S + 60, "it is tended")
    time.sleep(5)
    b.refresh()
    before = b.do("tree", root=MOUNTPOINT)["paths"]
    lab.fault("resume", a.name)
    resumed = time.monotonic()
    wait_until(lambda: not a.pid(), 60, "the daemon that was away ends")
    report.figure("it was only away: seconds until its daemon has found out, and ended", f"{time.monotonic() - resumed:.1f}", "<= 2",
                  time.monotonic() - resumed <= 2)
    a.run(f"pkill -f node.p[y]; umount -l {MOUNTPOINT}; true", timeout=60)
    writing.stop()
    b.refresh()
    after = b.do("tree", root=MOUNTPOINT)["paths"]
    report.check("it was only away: nothing that it stored late is seen", after == before, sorted(set(after.items()) ^ set(before.items()), key=str)[:6])
    late = [name for name, size in after.items() if size is not None]
    got = b.do("verify", root=MOUNTPOINT, names=late, timeout=300)
    report.check("it was only away: every byte is right", not got["wrong"] and not got["errors"], got["wrong"][:3] + got["errors"][:3])
    report.check("it was only away: what n2 removed stays removed", not set(gone) & set(after), sorted(set(gone) & set(after))[:3])
    wait_until(lambda: caretaker(b)["tends"] == "", 120, "it is tended no more")
    a.mounted = False
    come_back(report, lab, "it was only away", a, b)


def shared_room(report, lab, a, b):
    """The capacity is full of what n1 has, which is gone: n2 stores twice the capacity, and comes to have nearly all."""
    for node in (a, b):
        node.stop()
        node.start(adopt_after="30", capacity="256M", lease_ms="0", memory="64M", extent_size="16M", pack_below="4M")
    stored(a, b)
    a.do("write", root=MOUNTPOINT, names=[f"more/{index}" for index in range(40)], sizes=[BYTES])
    a.flush()
    b.refresh()
    a.kill()
    writing = b.begin("write", root=MOUNTPOINT, names=[f"new/{index}" for index in range(100)], sizes=[BYTES], again=True, pause=0.2)
    most = 0
    end = time.monotonic() + 150
    while time.monotonic() < end and caretaker(b)["evicted_objects"] < CHUNKS:
        most = max(most, int(b.text(f"du -sm {VOLUME}").split()[0]))
    told = caretaker(b)
    b.run("pkill -f node.p[y]; true")
    # NFS 3 gives back whole packs only: before the node is tended n2 may have none that could go.
    errors = [line for line in writing.said[-100 if lab.version == "3" else 0 :] if "error" in line]
    writing.stop()
    report.check("what it has makes room", told["evicted_objects"] >= CHUNKS and not told["problem"], told)
    report.check("what it has makes room: never more than the capacity", most <= 256, most)
    report.check("what it has makes room: no write fails", not errors, errors[:3])
    a.start()
    for node in (a, b, a):
        node.flush()
        node.refresh()
    trees = [{path: size for path, size in node.do("tree", root=MOUNTPOINT)["paths"].items() if not path.endswith(".tmp")} for node in (a, b)]
    report.check("what it has makes room: one tree on both", trees[0] == trees[1], sorted(set(trees[0]) ^ set(trees[1]))[:6])


ROWS = {"daemon": daemon_dies, "machine": machine_dies, "away": was_only_away, "room": shared_room}


def extra(parser):
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0,), extra)
    report = Report(arguments)
    for version in arguments.vers:
        lab = start(arguments, LEASE=str(LEASE_S))
        a, b = lab.nodes
        for name in arguments.only:
            if name == "away" and version == "3":
                continue  # its lock stays, as that of a machine that died
            report.title(f"{name}, NFS {version}")
            try:
                lab.new_volume(version, adopt_after=str(AFTER_S), memory="128M", extent_size="16M", pack_below="4M")
                ROWS[name](report, lab, a, b)
                for node in lab.nodes:
                    node.stop()
                for node in lab.nodes:
                    code, told = node.fsck()
                    report.check(f"{node.name}: fsck is clean", code == 0, told[-800:])
            except (Hung, LabFailed, ValueError, KeyError, IndexError) as error:
                report.check(f"{name}: goes through", False, f"{type(error).__name__} {error}")
                for node in lab.nodes:
                    try:
                        print(node.log(), flush=True)
                    except (Hung, LabFailed):
                        print(f"{node.name} does not answer", flush=True)
                lab.down()
                lab = start(arguments, LEASE=str(LEASE_S))
                a, b = lab.nodes
        lab.down()
    report.end()


if __name__ == "__main__":
    main()
