#!/usr/bin/env python3
"""What nodes ask of the server while nothing happens: RPCs a second of all of them together, and after a minute without a request."""

import time

from lab import KIB, MOUNTPOINT, Report, arguments_of, difference, start


def rate(lab, report, seconds, what, bar):
    before = {node: node.requests() for node in lab.nodes}
    begin = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    used = {}
    for node in lab.nodes:
        for name, count in difference(node.requests(), before[node]).items():
            used[name] = used.get(name, 0) + count
    a_second = sum(used.values()) / took
    report.figure(f"{what}: RPCs a second, {len(lab.nodes)} nodes", f"{a_second:.1f}", bar, a_second <= bar)
    for name, count in sorted(used.items(), key=lambda each: -each[1]):
        report.figure(f"  {name}", f"{count / took:.2f}")


def extra(parser):
    parser.add_argument("--nodes", type=int, default=2)


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0,), extra)
    report = Report(arguments)
    lab = start(arguments, nodes=arguments.nodes)
    for version in arguments.vers:
        lab.new_volume(version)
        report.title(f"idle, NFS {version}, {arguments.nodes} nodes")
        for node in lab.nodes:
            node.do("write", root=MOUNTPOINT, names=[f"{node.name}/{index}" for index in range(20)], sizes=[64 * KIB])
            node.flush()
        for node in lab.nodes:
            node.refresh()
        time.sleep(8)  # what is written down behind that: index, ACKS
        many = arguments.nodes * (arguments.nodes - 1)
        rate(lab, report, 30, "at once", 14 if arguments.nodes == 2 else 6 * many)
        time.sleep(45)
        rate(lab, report, 30, "after a minute", 5 if arguments.nodes == 2 else 2 * many)
        for node in lab.nodes:
            report.check(f"{node.name} finds its peers", all(peer["state"] == "live" for peer in node.status()["peers"]), node.status()["peers"])
    for node in lab.nodes:
        node.stop()
    report.end()


if __name__ == "__main__":
    main()
