"""The writers of writers.py as processes of this machine."""

import kvc_env
from kvc_process import Child
from writers import put_large_until_dead, stop_file, write_until_dead

WRITERS = 8


class Writers:
    """WRITERS processes, each in names of its own."""

    def __init__(self, mount, directory, round_number, found, large=False):
        self.directory = directory
        present = [name for name, version in found.items() if version and ".tmp" not in name]
        self.children = [
            Child(
                write_until_dead,
                mount.path,
                directory,
                number,
                round_number,
                kvc_env.seed(),
                [name for name in present if name.startswith(f"w{number}n")],
            )
            for number in range(WRITERS)
        ]
        if large:
            self.children.append(Child(put_large_until_dead, mount.path, directory, WRITERS, round_number))

    def results(self):
        return sum(child.result() for child in self.children)

    def stop(self):
        """With the daemon alive: they would go on for ever."""
        with open(stop_file(self.directory), "xb"):
            pass
        return self.results()
