#!/usr/bin/env python3
"""What fs/OPERATIONS.md says of several nodes, row by row, over NFS."""

import concurrent.futures

from lab import KIB, MIB, MOUNTPOINT, VOLUME, Report, arguments_of, start, wait_until

SIZES = {"small": 3 * KIB, "packed": 300 * KIB, "large": 6 * MIB, "file of its own": 40 * MIB}


def path(name):
    return f"{MOUNTPOINT}/{name}"


def publish(*nodes):
    for node in nodes:
        node.flush()
    for node in nodes:
        node.refresh()


def same_tree(report, lab, what):
    trees = [node.do("tree", root=MOUNTPOINT) for node in lab.nodes]
    report.check(f"{what}: one tree on all nodes", all(tree == trees[0] and not tree["errors"] for tree in trees),
                 [sorted(set(map(str, tree["paths"].items())) ^ set(map(str, trees[0]["paths"].items())))[:6] for tree in trees[1:]]
                 + [tree["errors"][:3] for tree in trees])


def read_and_replaced(report, lab, a, b):
    for label, size in SIZES.items():
        name = f"r/{label.replace(' ', '')}"
        a.do("write", root=MOUNTPOINT, names=[name], sizes=[size])
        publish(a, b)
        report.check(f"{label}: b reads what a stored", b.calls(["verify", path(name), name]) == [0])
        b.do("write", root=MOUNTPOINT, names=[name], sizes=[size], version=1)
        report.check(f"{label}: b, who replaced it, sees its own at once", b.calls(["verify", path(name), name]) == [1])
        publish(b, a)
        report.check(f"{label}: a sees it replaced", a.calls(["verify", path(name), name]) == [1], a.calls(["verify", path(name), name]))
        b.calls(["unlink", path(name)])
        publish(b, a)
        report.check(f"{label}: removed on b it is gone on both", [n.calls(["exists", path(name)]) for n in (a, b)] == [[False], [False]])


def refused(report, lab, a, b):
    a.do("write", root=MOUNTPOINT, names=["w"], sizes=[10 * KIB])
    publish(a, b)
    got = b.calls(["open", path("w"), "O_RDWR"], ["pwrite", 0, "b", 0], ["close", 0], ["truncate", path("w"), 5], ["chmod", path("w"), 0o600],
                  ["setxattr", path("w"), "user.note", "b"], ["rename", path("w"), path("w2")], ["link", path("w"), path("w3")],
                  ["getxattr", path("w"), "user.kvcachefs.owner"], ["utime", path("w")])
    report.check("writing, truncating, chmod, attributes: EROFS; rename, link: EXDEV; owner; utime",
                 got == [0, "EROFS", 0, "EROFS", "EROFS", "EROFS", "EXDEV", "EXDEV", "n1", 0], got)
    b.run(f"mv {path('w')} {path('w2')}")
    publish(b, a)
    report.check("mv copies", a.calls(["exists", path("w")], ["verify", path("w2"), "w"]) == [False, 0])
    got = b.calls(["getxattr", path("w2"), "user.kvcachefs.owner"])
    report.check("and what it made is b's", got == ["n2"], got)


def truncated(report, lab, a, b):
    a.do("write", root=MOUNTPOINT, names=["t"], sizes=[100 * KIB])
    publish(a, b)
    got = b.calls(["open", path("t"), "O_WRONLY|O_TRUNC"], ["pwrite", 0, "anew", 0], ["close", 0])
    report.check("O_TRUNC gives b one of its own", got == [0, 4, 0], got)
    publish(b, a)
    for node in (a, b):
        got = node.calls(["open", path("t"), "O_RDONLY"], ["pread", 0, 100, 0])
        report.check(f"{node.name} reads what b wrote there", got == [0, "anew"], got)


def directories(report, lab, a, b):
    got = [node.calls(["mkdir", path("d")], ["mkdir", path("d/e")]) for node in (a, b)]
    publish(a, b)
    report.check("both make one directory, or the second one sees it", got[0] == [0, 0] and got[1] in ([0, 0], ["EEXIST", "EEXIST"]), got)
    a.do("write", root=MOUNTPOINT, names=["d/e/a"], sizes=[KIB])
    b.do("write", root=MOUNTPOINT, names=["d/e/b"], sizes=[KIB])
    publish(a, b)
    report.check("it has the files of both", [node.calls(["list", path("d/e")]) for node in (a, b)] == [[["a", "b"]]] * 2)
    got = a.calls(["rename", path("d"), path("elsewhere")], ["rmdir", path("d/e")])
    report.check("rename of it: EXDEV; rmdir: ENOTEMPTY", got == ["EXDEV", "ENOTEMPTY"], got)
    got = a.calls(["unlink", path("d/e/a")], ["unlink", path("d/e/b")], ["rmdir", path("d/e")], ["rmdir", path("d")])
    report.check("a removes all of it", got == [0, 0, 0, 0], got)
    publish(a, b)
    publish(b, a)
    report.check("it is gone on both", [node.calls(["exists", path("d")]) for node in (a, b)] == [[False], [False]])


def open_file(report, lab, a, b):
    names = ["o/1", "o/2"]
    for fate in ("removed", "replaced"):
        a.do("write", root=MOUNTPOINT, names=names, sizes=[2 * MIB], version=0)
        publish(a, b)
        b.drop_caches()
        release = lab.file()
        holding = b.begin("hold", root=MOUNTPOINT, names=names, release=release)
        holding.line()
        if fate == "removed":
            a.calls(*(["unlink", path(name)] for name in names))
        else:
            a.do("write", root=MOUNTPOINT, names=names, sizes=[2 * MIB], version=1)
        publish(a, b)
        b.run("sleep 7")  # its space may be given back meanwhile
        if fate == "removed":
            report.check("removed by a: gone on b", b.calls(*(["exists", path(name)] for name in names)) == [False] * 2)
        with open(release, "w", encoding="ascii"):
            pass
        wrong = holding.result()["wrong"]
        allowed = [each for each in wrong if not each.endswith(": EIO")]
        report.check(f"{fate} by a while b has it open: b reads the old bytes or EIO, nothing else", not allowed, wrong)
        report.figure(f"  of {len(names) + 1} reads EIO", len(wrong))


def at_once(report, lab, a, b):
    for round_ in range(3):
        names = [f"same/{round_}/{index}" for index in range(60)]
        release = lab.file()
        working = [node.begin("at_once", root=MOUNTPOINT, names=names, size=100 * KIB, version=number, release=release)
                   for number, node in enumerate((a, b))]
        for each in working:
            each.line()
        with open(release, "w", encoding="ascii"):
            pass
        stored = [each.result() for each in working]
        report.check(f"round {round_}: both store the same {len(names)} names at once", all(each.get("stored") == len(names) for each in stored), stored)
        publish(a, b)
        publish(a, b)
        got = [node.do("verify", root=MOUNTPOINT, names=names) for node in (a, b)]
        report.check(f"round {round_}: each is whole", all(each["read"] == len(names) for each in got), [each["wrong"][:3] + each["missing"][:3] + each["errors"][:3] for each in got])
        report.check(f"round {round_}: both nodes have the same ones", got[0]["versions"] == got[1]["versions"],
                     [name for name in names if got[0]["versions"].get(name) != got[1]["versions"].get(name)][:5])


def seen_by_itself(report, lab, a, b):
    a.do("write", root=MOUNTPOINT, names=["soon/1"], sizes=[KIB])
    wait_until(lambda: b.calls(["exists", path("soon/1")]) == [True], 20, "it is seen on b")
    b.calls(["unlink", path("soon/1")])
    wait_until(lambda: a.calls(["exists", path("soon/1")]) == [False], 20, "it is gone on a")
    report.check("names come and go without refresh", True)


def first_mounts(report, lab, a, b):
    """An empty volume that both mount at the same moment is one volume."""
    for round_ in range(4):
        for node in (a, b):
            node.stop()
        a.run(f"rm -rf {VOLUME}")
        for node in (a, b):
            node.run("rm -rf /var/lib/kvcachefs")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            failures = [str(each.exception()) for each in [pool.submit(node.start) for node in (a, b)] if each.exception()]
        if not report.check(f"round {round_}: both mount an empty volume", not failures, failures):
            for node in (a, b):
                if not node.mounted:
                    node.start()
        uuids = {node.status()["volume"]["uuid"] for node in (a, b)}
        report.check(f"round {round_}: it is one", len(uuids) == 1, uuids)
        a.do("write", root=MOUNTPOINT, names=["first"], sizes=[KIB])
        publish(a, b)
        report.check(f"round {round_}: b sees what a stores", b.calls(["verify", path("first"), "first"]) == [0])


def evicted(report, lab, a, b):
    """What a evicts is absent on b, where there are no leases: never other bytes, and no error but on what was open."""
    for node in (a, b):
        node.stop()
    a.start(capacity="128M", lease_ms=0, pack_below="1M")
    b.start(lease_ms=0)
    names = [f"e/{index}" for index in range(300)]
    writing = a.begin("write", root=MOUNTPOINT, names=names, sizes=[MIB])
    seen = {"read": 0, "missing": [], "errors": [], "wrong": []}
    while writing.process.poll() is None:
        got = b.do("verify", root=MOUNTPOINT, names=names)
        seen = {what: seen[what] + got[what] for what in seen}
    report.check("b reads while a evicts", not seen["wrong"] and all(each.endswith(": EIO") for each in seen["errors"]),
                 seen["wrong"][:3] + seen["errors"][:3])
    report.figure("  whole, absent, given back while b read", f"{seen['read']}, {len(seen['missing'])}, {len(seen['errors'])}")
    publish(a, b)
    got = [node.do("verify", root=MOUNTPOINT, names=names) for node in (a, b)]
    report.check("both see the same that is left", got[0]["versions"] == got[1]["versions"] and 20 < got[0]["read"] < 200 and not got[1]["errors"],
                 [(each["read"], each["wrong"][:3], each["errors"][:3]) for each in got])
    a.calls(*(["unlink", path(name)] for name in names))
    for node in (a, b):
        node.stop()
        node.mount_options = {}
        node.start()


ROWS = (first_mounts, evicted, read_and_replaced, refused, truncated, directories, open_file, at_once, seen_by_itself)


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"))
    report = Report(arguments)
    lab = start(arguments)
    for version in arguments.vers:
        for rtt in arguments.rtt:
            lab.round_trip(0)
            lab.new_volume(version)
            lab.round_trip(rtt)
            report.title(f"semantics, NFS {version}, {rtt} ms added to a round trip")
            for row in ROWS:
                row(report, lab, *lab.nodes)
                publish(*lab.nodes)
                same_tree(report, lab, row.__name__)
            lab.round_trip(0)
            for node in lab.nodes:
                node.stop()
            for node in lab.nodes:
                code, told = node.fsck()
                report.check(f"{node.name}: fsck is clean", code == 0, told[-600:])
    report.end()


if __name__ == "__main__":
    main()
