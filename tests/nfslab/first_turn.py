#!/usr/bin/env python3
"""n2 restores cold what n1 wrote: its rate against one direct stream of as many bytes in this lab, and what that costs on the wire."""

from lab import KIB, MIB, MOUNTPOINT, Report, arguments_of, difference, start

SIZES = {"64 KiB": 64 * KIB, "2 MiB": 2 * MIB}


def stream(lab, node, total, block):
    node.run("sync; echo 3 > /proc/sys/vm/drop_caches")
    return node.do("direct", path="/mnt/nfs/stream", block=block)


def measure(lab, report, arguments, label, size):
    writer, reader = lab.nodes
    total = arguments.mib * MIB
    names = [f"turn/{index:06}" for index in range(total // size)]
    writer.do("write", root=MOUNTPOINT, names=names, sizes=[size], timeout=900)
    writer.flush()
    # Memory that was never touched costs a virtual machine more than the reads that fill it.
    own = [f"own/{index:04}" for index in range(arguments.mib // 8)]
    reader.do("write", root=MOUNTPOINT, names=own, sizes=[8 * MIB], timeout=900)
    reader.flush()
    reader.calls(*(["unlink", f"{MOUNTPOINT}/{name}"] for name in own))
    reader.refresh()
    before = reader.requests()
    reader.run("sleep 6")
    idle = {name: count / 6 for name, count in difference(reader.requests(), before).items()}
    rates, streams, warm = [], [], []
    for _ in range(arguments.rounds):
        reader.drop_caches()
        before = reader.requests()
        got = reader.do("restore", root=MOUNTPOINT, names=names, timeout=900)
        used = difference(reader.requests(), before)
        report.check(f"{label}: all of it is read", got["bytes"] == total, got)
        rates.append(got["bytes"] / got["seconds"] / MIB)
        reads = used.pop("READ", 0)
        # The same from the daemon's RAM: what the mount itself costs here, whatever is below it.
        reader.run("echo 3 > /proc/sys/vm/drop_caches")
        warm.append(total / reader.do("restore", root=MOUNTPOINT, names=names, timeout=900)["seconds"] / MIB)
        streams.append(max(total / stream(lab, reader, total, block)["seconds"] / MIB for block in (1 * MIB, 8 * MIB)))
    ratio = sorted(rate / best for rate, best in zip(rates, streams))[len(rates) // 2]
    report.figure(f"{label}: MiB/s, rounds", " ".join(f"{rate:.0f}" for rate in rates))
    report.figure(f"{label}: one O_DIRECT stream, MiB/s", " ".join(f"{rate:.0f}" for rate in streams))
    report.figure(f"{label}: of the stream, median", f"{ratio:.2f}", 0.9, ratio >= 0.9)
    report.figure(f"{label}: from the daemon's RAM, MiB/s", " ".join(f"{rate:.0f}" for rate in warm))
    # Where all nodes share one processor nothing overlaps: the stream and the way out of RAM take their times one after another.
    shared = sorted(rate * (1 / best + 1 / ram) for rate, best, ram in zip(rates, streams, warm))[len(rates) // 2]
    report.figure(f"{label}: of stream and RAM one after another, median", f"{shared:.2f}")
    mine = arguments.mib * 1.1
    polls = idle.get("READ", 0) * got["seconds"]
    report.figure(f"{label}: READs less {polls:.0f} of polls", f"{reads - polls:.0f}", f"{mine:.0f}", reads - polls <= mine)
    others = sum(max(0, count - idle.get(name, 0) * got["seconds"]) for name, count in used.items())
    report.figure(f"{label}: other RPCs beyond idle ones, a chunk", f"{others / len(names):.3f}", 0.05, others / len(names) <= 0.05)
    report.figure(f"{label}: which, with idle ones in {got['seconds']:.1f} s", " ".join(f"{name}:{count}" for name, count in sorted(used.items()))[:60])
    reader.drop_caches()
    whole = reader.do("verify", root=MOUNTPOINT, names=names, version=0, timeout=900)
    report.check(f"{label}: every byte is right", whole["read"] == len(names) and not whole["wrong"], whole["wrong"][:3] + whole["errors"][:3])


def extra(parser):
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nfs", default="", help="options of the NFS mount (rsize=...)")


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0, 1.3), extra)
    report = Report(arguments)
    lab = start(arguments, MEM="2G")
    for version in arguments.vers:
        for rtt in arguments.rtt:
            for label, size in SIZES.items():
                lab.round_trip(0)
                lab.new_volume(version, arguments.nfs, memory=f"{2 * arguments.mib}M")
                lab.nodes[0].do("fill", path="/mnt/nfs/stream", size=arguments.mib * MIB, block=8 * MIB)
                lab.round_trip(rtt)
                rsize = next(each for each in lab.nodes[1].options.split(",") if each.startswith("rsize="))
                report.title(f"first turn, NFS {version}, {rsize}, {rtt} ms added to a round trip, {arguments.mib} MiB")
                measure(lab, report, arguments, label, size)
    lab.round_trip(0)
    for node in lab.nodes:
        node.stop()
    report.end()


if __name__ == "__main__":
    main()
