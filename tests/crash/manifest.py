"""A writer's record, outside of the mount, of what it asked for and what was answered; one file for each writer, one line for each event.

  begin NAME VERSION     from now on NAME may hold VERSION (0: absent)
  done NAME VERSION      the mount has answered: nothing older than VERSION may show

Lines are written before and after the calls, and are in the page cache when they count: the machine does not stop, only the daemon does.
"""

import os


class Writer:
    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begin(self, name, version):
        os.write(self._fd, f"begin {name} {version}\n".encode())

    def done(self, name, version):
        os.write(self._fd, f"done {name} {version}\n".encode())


class Expected:
    """Of one name: the versions it may show, in order; the first is the newest that was acknowledged."""

    def __init__(self):
        self.allowed = [0]

    def begin(self, version):
        self.allowed.append(version)

    def done(self, version):
        del self.allowed[: len(self.allowed) - 1 - self.allowed[::-1].index(version)]


def load(directory):
    """{name: Expected} over all writers, and how many events were acknowledged."""
    names, acknowledged = {}, 0
    for entry in sorted(os.listdir(directory)):
        with open(os.path.join(directory, entry), encoding="ascii") as lines:
            for line in lines:
                event, name, version = line.split()
                expected = names.setdefault(name, Expected())
                if event == "begin":
                    expected.begin(int(version))
                else:
                    expected.done(int(version))
                    acknowledged += 1
    return names, acknowledged


def settle(directory, found):
    """After a check: what was found is what the next round starts from."""
    for entry in os.listdir(directory):
        os.unlink(os.path.join(directory, entry))
    writer = Writer(os.path.join(directory, "found"))
    for name, version in found.items():
        writer.begin(name, version)
        writer.done(name, version)
