#!/usr/bin/env python3
"""`kvcachefs check-volume` on two clients at once: what it says of mounts that nodes can share, and of those that they cannot."""

import threading

from lab import Report, arguments_of, start

HOLDS = {"can be shared"}
LOCKS = {"FAILS: a lock keeps the other machine out"}
# By chance the two do not even find each other.
LISTINGS = {"FAILS: a name that was made is in the next listing", "the volume cannot be shared"}
# NFS version, options, of which one is said by each client.
MOUNTS = [("4.2", "hard", HOLDS), ("3", "hard", HOLDS), ("3", "hard,nolock", LOCKS), ("4.2", "hard,nocto,actimeo=60", LISTINGS)]


def check_on_all(nodes):
    results = {}

    def check(node):
        done = node.run("/host/kvcachefs check-volume /mnt/nfs --wait 30", check=False)
        results[node.name] = (done.returncode, done.stdout + done.stderr)

    threads = [threading.Thread(target=check, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main():
    arguments = arguments_of(__doc__, ("4.2", "3"), (0,))
    report = Report(arguments)
    lab = start(arguments)
    for version, options, expected in MOUNTS:
        if version not in arguments.vers:
            continue
        lab.mount_nfs(version, options)
        report.title(f"check-volume, NFS {version}, {options}")
        for name, (code, said) in check_on_all(lab.nodes).items():
            right = code == int(expected is not HOLDS) and any(each in said for each in expected) and said.count("FAILS") <= 1
            report.check(f"{name}: {' or '.join(sorted(expected))}", right, said)
        if expected is not LISTINGS:  # what a client does not show it cannot remove
            report.check("nothing is left", not lab.nodes[0].text("ls -A /mnt/nfs | grep check-volume || true").strip())
    report.end()


if __name__ == "__main__":
    main()
