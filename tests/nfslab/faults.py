#!/usr/bin/env python3
"""Faults of nodes, network and server while both nodes write: afterwards every byte is right, both have one tree, and nothing is
missing that was acknowledged. `--only NAME...` runs some."""

import time

from lab import KIB, MIB, MOUNTPOINT, Hung, LabFailed, Report, arguments_of, start, wait_until

SIZES = [300 * KIB, 20 * KIB, 2 * MIB, 64 * KIB, 5 * MIB, 4 * KIB]
NAMES = 30


class Case:
    """Writers on both nodes, a fault, and what is to hold afterwards."""

    def __init__(self, lab, report, name):
        self.lab, self.report, self.name = lab, report, name
        self.a, self.b = lab.nodes
        self.writers = {}

    def names(self, node):
        return [f"{self.name}/{node.name}/{index}" for index in range(NAMES)]

    def begin(self):
        """Each node writes its own names again and again, and both the same ones."""
        for node in self.lab.nodes:
            self.writers[node] = [node.begin("write", root=MOUNTPOINT, names=self.names(node), sizes=SIZES, again=True),
                                  node.begin("write", root=MOUNTPOINT, names=[f"{self.name}/both/{index}" for index in range(10)],
                                             sizes=[100 * KIB], again=True, pause=0.05)]
        for node in self.lab.nodes:
            self.writers[node][0].line()
        time.sleep(2)

    def stop_writers(self, nodes=None):
        for node in nodes or self.lab.nodes:
            try:
                node.run("pkill -f node.p[y]; true", timeout=60)
            except (Hung, LabFailed):
                self.report.check(f"{self.name}: {node.name} ends its writers", False)
            for writer in self.writers[node]:
                writer.result(120)

    def acknowledged(self, node):
        """{name: the last version whose rename returned}, and the errors that there were."""
        versions, errors = {}, {}
        for line in self.writers[node][0].said:
            if "version" in line:
                versions[line["name"]] = line["version"]
            elif "error" in line:
                errors[line["error"]] = errors.get(line["error"], 0) + 1
        return versions, errors

    def afterwards(self, allowed=(), lost=()):
        """`allowed`: errors that writers may have had; `lost`: nodes that may have lost what was not synced."""
        check, name = self.report.check, self.name
        for node in self.lab.nodes:
            node.flush(120)
        for node in self.lab.nodes:
            node.refresh(120)
        trees, found = [], []
        for node in self.lab.nodes:
            node.drop_caches()
            tree = node.do("tree", root=MOUNTPOINT)
            trees.append(tree["paths"])
            check(f"{name}: {node.name} lists all", not tree["errors"], tree["errors"][:3])
            files = [path for path, size in tree["paths"].items() if size is not None and not path.endswith(".tmp")]
            whole = node.do("verify", root=MOUNTPOINT, names=files, timeout=600)
            bad = whole["wrong"] + whole["errors"] + whole["missing"]
            check(f"{name}: {node.name} reads {len(files)} files, each byte right", not bad, bad[:5])
            found.append(whole["versions"])
        files = [{path: size for path, size in tree.items() if not path.endswith(".tmp")} for tree in trees]
        check(f"{name}: one tree on both", files[0] == files[1], sorted(set(files[0].items()) ^ set(files[1].items()), key=str)[:6])
        check(f"{name}: the same versions on both", found[0] == found[1],
              [(each, found[0].get(each), found[1].get(each)) for each in found[0] if found[0][each] != found[1].get(each)][:6])
        for node in self.lab.nodes:
            versions, errors = self.acknowledged(node)
            there = found[self.lab.nodes.index(node)]
            gone = [(each, version, there.get(each)) for each, version in versions.items() if there.get(each, -1) < version]
            if node not in lost:
                check(f"{name}: all {len(versions)} that {node.name} was told are stored are there", not gone, gone[:5])
            strange = {error: count for error, count in errors.items() if error not in allowed}
            check(f"{name}: {node.name}'s writers had no other errors than {', '.join(allowed) or 'none'}", not strange, strange)
        for first, other in ((self.a, self.b), (self.b, self.a)):
            probe = f"{self.name}/after{first.name}"
            first.do("write", root=MOUNTPOINT, names=[probe], sizes=[64 * KIB])
            first.flush()
            other.refresh()
            got = other.do("verify", root=MOUNTPOINT, names=[probe])
            check(f"{name}: {other.name} sees what {first.name} stores afterwards", got["read"] == 1 and not got["wrong"], got)
        for node in self.lab.nodes:
            status = node.status()
            check(f"{name}: {node.name} is well and sees its peer", status["volume"]["state"] == "ok" and status["peers"][0]["state"] == "live"
                  and not status["peers_problem"], [status["volume"], status["peers"], status["peers_problem"]])
            bad = {error: count for error, count in status["errors"].items() if count and error == "checksum"}
            if bad:
                self.report.figure(f"{name}: {node.name} found bad checksums on its way", str(bad))


def reads_all_of(case, node, other):
    """While `other` is away: what it had published is read here."""
    node.drop_caches()
    tree = node.do("tree", root=MOUNTPOINT)
    files = [path for path, size in tree["paths"].items() if size is not None and f"/{other.name}/" in path and not path.endswith(".tmp")]
    got = node.do("verify", root=MOUNTPOINT, names=files, timeout=300)
    case.report.check(f"{case.name}: meanwhile {node.name} reads {other.name}'s {len(files)} files", files and not got["wrong"] and not got["errors"],
                      got["wrong"][:3] + got["errors"][:3])


def kill_one(case):
    case.begin()
    case.a.kill()
    reads_all_of(case, case.b, case.a)
    case.a.start()
    case.stop_writers()
    case.afterwards(allowed=("ENOTCONN", "ECONNABORTED", "EIO", "ENOENT"))


def kill_both(case):
    case.begin()
    for node in case.lab.nodes:
        node.kill()
    for node in case.lab.nodes:
        node.start()
    case.stop_writers()
    case.afterwards(allowed=("ENOTCONN", "ECONNABORTED", "EIO", "ENOENT"))


def crash(case):
    case.begin()
    case.lab.fault("crash", case.a.name)
    reads_all_of(case, case.b, case.a)
    case.lab.fault("start", case.a.name)
    case.a.mounted = False
    case.lab.mount_nfs(case.lab.version, case.lab.options, [case.a])
    begin = time.monotonic()
    case.a.start()
    case.report.figure(f"{case.name}: seconds until it is mounted again", f"{time.monotonic() - begin:.1f}")
    case.stop_writers()
    case.afterwards(allowed=())


def paused(seconds):
    def case_of(case):
        case.begin()
        case.lab.fault("pause", case.a.name)
        time.sleep(seconds)
        reads_all_of(case, case.b, case.a)
        case.lab.fault("resume", case.a.name)
        time.sleep(5)
        case.stop_writers()
        case.afterwards()

    return case_of


def cut_off(seconds):
    def case_of(case):
        case.begin()
        case.lab.fault("cut", case.a.name)
        time.sleep(seconds)
        reads_all_of(case, case.b, case.a)
        case.lab.fault("heal", case.a.name)
        time.sleep(15)
        case.stop_writers()
        case.afterwards()

    return case_of


def server_restarts(case):
    case.begin()
    case.lab.fault("restart-server")
    time.sleep(15)
    case.stop_writers()
    case.afterwards()


def server_restarts_often(case):
    case.begin()
    for _ in range(3):
        case.lab.fault("restart-server")
        time.sleep(4)
    time.sleep(15)
    case.stop_writers()
    case.afterwards()


def full(case):
    case.begin()
    case.lab.fault("enospc", "0")
    time.sleep(8)
    case.lab.fault("space")
    time.sleep(5)
    said = [len(case.writers[node][0].said) for node in case.lab.nodes]
    wait_until(lambda: all(any("version" in line for line in case.writers[node][0].said[before:]) for node, before in zip(case.lab.nodes, said)), 90,
               "both nodes store again")
    case.stop_writers()
    case.afterwards(allowed=("ENOSPC",))


def absent(case):
    """A node that is frozen until the other takes it for gone, which meanwhile replaces and removes what it had."""
    case.begin()
    case.stop_writers([case.a])
    case.a.flush()
    case.b.refresh()
    case.lab.fault("pause", case.a.name)
    wait_until(lambda: case.b.status()["peers"][0]["state"] == "absent", 260, f"{case.a.name} is absent")
    reads_all_of(case, case.b, case.a)
    replaced, removed = case.names(case.a)[:3], case.names(case.a)[3:6]
    case.b.do("write", root=MOUNTPOINT, names=replaced, sizes=[50 * KIB], version=1000)
    case.b.calls(*(["unlink", f"{MOUNTPOINT}/{name}"] for name in removed))
    case.b.flush()
    case.lab.fault("resume", case.a.name)
    time.sleep(5)
    case.a.refresh()
    got = case.a.do("verify", root=MOUNTPOINT, names=replaced, version=1000)
    case.report.check(f"{case.name}: what n2 replaced meanwhile is seen on n1", got["read"] == len(replaced) and not got["wrong"], got)
    got = case.a.do("probe", root=MOUNTPOINT, names=removed)
    case.report.check(f"{case.name}: what n2 removed meanwhile is gone on n1", got["present"] == 0, got)
    case.stop_writers([case.b])
    for line in case.writers[case.a][0].said:
        if line.get("name") in removed:
            line.pop("version", None)
    case.afterwards()


def clock(hours):
    def case_of(case):
        case.b.run(f"date -s '{'+' if hours > 0 else '-'}{abs(hours)} hours'")
        case.begin()
        time.sleep(3)
        case.stop_writers()
        # What one replaces is replaced, whatever the clocks say.
        for round_ in range(4):
            node = case.lab.nodes[round_ % 2]
            names = [f"{case.name}/turns/{index}" for index in range(20)]
            node.do("write", root=MOUNTPOINT, names=names, sizes=[50 * KIB], version=round_)
            for each in case.lab.nodes:
                each.flush()
            for each in case.lab.nodes:
                each.refresh()
                got = each.do("verify", root=MOUNTPOINT, names=names, version=round_)
                case.report.check(f"{case.name}: {each.name} sees what {node.name} stored in turn {round_}", got["read"] == 20 and not got["wrong"],
                                  got["wrong"][:3] + got["missing"][:3])
        case.b.calls(*(["unlink", f"{MOUNTPOINT}/{name}"] for name in names[:10]))
        case.b.flush()
        case.a.refresh()
        got = case.a.do("probe", root=MOUNTPOINT, names=names)
        case.report.check(f"{case.name}: what n2 removes is gone on n1", got["present"] == 10, got)
        case.b.run(f"date -s '{'-' if hours > 0 else '+'}{abs(hours)} hours'")
        case.afterwards()

    return case_of


CASES = {
    "kill": kill_one,
    "kill_both": kill_both,
    "crash": crash,
    "pause20": paused(20),
    "pause70": paused(70),
    "cut20": cut_off(20),
    "cut45": cut_off(45),
    "restart": server_restarts,
    "restarts": server_restarts_often,
    "full": full,
    "ahead": clock(3),
    "behind": clock(-3),
    "absent": absent,
}
BY_HAND = {"absent"}  # four minutes


def extra(parser):
    parser.add_argument("--only", nargs="+", choices=CASES, default=[name for name in CASES if name not in BY_HAND])
    parser.add_argument("--rounds", type=int, default=1)


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0,), extra)
    report = Report(arguments)
    for version in arguments.vers:
        lab = start(arguments)
        # n1 promises that what it acknowledged outlives a power loss, n2 that it outlives its daemon.
        lab.new_volume(version, durability="sync", memory="256M")
        lab.nodes[1].stop()
        lab.nodes[1].start(durability="close", memory="256M")
        for round_ in range(arguments.rounds):
            for name in arguments.only:
                report.title(f"{name}, NFS {version}, round {round_}")
                case = Case(lab, report, f"{name}{round_}")
                try:
                    CASES[name](case)
                except (Hung, LabFailed, ValueError, KeyError, IndexError) as error:
                    report.check(f"{name}: goes through", False, f"{type(error).__name__} {error}")
                    for node in lab.nodes:
                        try:
                            print(node.log(), flush=True)
                        except (Hung, LabFailed):
                            print(f"{node.name} does not answer", flush=True)
                    # The next case begins with a lab of its own.
                    lab.down()
                    lab = start(arguments)
                    lab.new_volume(version, durability="sync", memory="256M")
                    continue
        for node in lab.nodes:
            try:
                node.stop()
                report.check(f"{node.name}: unmounts", True)
                code, told = node.fsck()
                report.check(f"{node.name}: fsck is clean", code == 0, told[-800:])
            except (Hung, LabFailed) as error:
                report.check(f"{node.name}: unmounts, fsck is clean", False, error)
        lab.down()
    report.end()


if __name__ == "__main__":
    main()
