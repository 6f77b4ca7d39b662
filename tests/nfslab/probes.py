#!/usr/bin/env python3
"""What 10,000 probes on n2 ask of the server beyond its polls: names of n1 that are there, and names that are not."""

from lab import KIB, MOUNTPOINT, Report, arguments_of, difference, start

# What a node asks for anyway: tails and HEADs (READ), its own HEAD (WRITE), room (STATFS, FSSTAT), the leases of v4, listings.
BACKGROUND = {"READ", "WRITE", "STATFS", "FSSTAT", "SEQUENCE", "RENEW", "READDIR", "READDIRPLUS"}


def measure(lab, report, arguments):
    writer, reader = lab.nodes
    there = [f"probes/{index // 100}/{index:06}" for index in range(arguments.probes // 2)]
    writer.do("write", root=MOUNTPOINT, names=there, sizes=[4 * KIB], timeout=900)
    writer.flush()
    reader.refresh()
    reader.run("sleep 3")
    before = reader.requests()
    reader.run("sleep 5")
    idle = difference(reader.requests(), before)
    for what, names, present in (("present", there, len(there)), ("absent", [f"{name}.not" for name in there], 0)):
        for where, node in (("n2", reader), ("n1, which stored them", writer)):
            before = node.requests()
            got = node.do("probe", root=MOUNTPOINT, names=names)
            used = difference(node.requests(), before)
            report.check(f"{what}, {where}: all are answered right", got["present"] == present, got)
            more = {name: count for name, count in used.items() if name not in BACKGROUND and count > 1 + idle.get(name, 0) / 5 * got["seconds"]}
            report.figure(f"{what}, {where}: us a probe", f"{got['seconds'] / len(names) * 1e6:.0f}")
            if node is reader:
                report.figure(f"{what}, {where}: RPCs beyond polls, of {len(names)} probes", sum(more.values()), 0, not more)
                report.figure(f"{what}, {where}: in {got['seconds']:.2f} s", " ".join(f"{n}:{c}" for n, c in sorted(used.items())) or "nothing")
    report.figure("n2 idle for 5 s", " ".join(f"{name}:{count}" for name, count in sorted(idle.items())))


def extra(parser):
    parser.add_argument("--probes", type=int, default=10000)


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0,), extra)
    report = Report(arguments)
    lab = start(arguments)
    for version in arguments.vers:
        for rtt in arguments.rtt:
            lab.round_trip(0)
            # Probes are followed by reads ahead, which are not probes.
            lab.new_volume(version, prefetch="off")
            lab.round_trip(rtt)
            report.title(f"probes, NFS {version}, {rtt} ms added to a round trip")
            measure(lab, report, arguments)
    for node in lab.nodes:
        node.stop()
    report.end()


if __name__ == "__main__":
    main()
