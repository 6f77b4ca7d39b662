#!/usr/bin/env python3
"""How long after its rename on n1 a chunk can be opened on n2, which asks for it every 50 ms from before it is there."""

from lab import MIB, MOUNTPOINT, Report, arguments_of, start

EVERY_S, AHEAD, PORT = 0.05, 4, 4711


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(lab, report, arguments):
    writer, reader = lab.nodes
    names = [f"chunk{index:05}" for index in range(arguments.chunks)]
    watching = reader.begin("watch", root=MOUNTPOINT, names=names, every=EVERY_S, port=PORT, ahead=AHEAD,
                            limit=60 + arguments.chunks * (arguments.every + 0.2))
    watching.line()
    stored = writer.do("announce", root=MOUNTPOINT, names=names, size=2 * MIB, every=arguments.every, to=reader.name, port=PORT, timeout=900)
    seen = watching.result(900)
    report.check("every chunk is seen", not seen["unseen"], seen["unseen"][:5])
    lags = seen["lags"]
    for what, value, bar in (("p50", percentile(lags, 0.5), 0.6), ("p99", percentile(lags, 0.99), 0.9), ("longest", max(lags), 1.5)):
        report.figure(f"seconds until it opens, {what}", f"{value:.3f}", bar, value <= bar)
    report.figure("chunks, not stored in their time, announcements lost", f"{len(names)}, {stored['late']}, {seen['untold']}")
    report.figure("longest round of probes, s", f"{seen['longest_round']:.3f}")
    whole = reader.do("verify", root=MOUNTPOINT, names=names, version=0, timeout=900)
    report.check("every byte is right", not whole["wrong"] and not whole["missing"] and not whole["errors"],
                 whole["wrong"][:3] + whole["missing"][:3] + whole["errors"][:3])


def extra(parser):
    parser.add_argument("--chunks", type=int, default=300)
    parser.add_argument("--every", type=float, default=0.2, help="seconds from one chunk to the next")
    parser.add_argument("--options", default="", help="of kvcachefs, NAME=VALUE,...")


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0, 1.3), extra)
    options = dict(each.split("=") for each in arguments.options.split(",") if each)
    report = Report(arguments)
    lab = start(arguments)
    for version in arguments.vers:
        for rtt in arguments.rtt:
            lab.round_trip(0)
            lab.new_volume(version, **options)
            lab.round_trip(rtt)
            report.title(f"freshness, NFS {version}, {rtt} ms added to a round trip, {arguments.chunks} chunks of 2 MiB {arguments.options}")
            measure(lab, report, arguments)
    lab.round_trip(0)
    for node in lab.nodes:
        node.stop()
    report.end()


if __name__ == "__main__":
    main()
