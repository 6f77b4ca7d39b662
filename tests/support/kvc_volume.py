"""What a volume takes on its backing file system."""

import os
import threading


def bytes_by_file(volume):
    """{inode: bytes} of all files below it, by their blocks."""
    found = {}
    for where, _, names in os.walk(volume):
        for name in names:
            try:
                status = os.lstat(os.path.join(where, name))
                found[status.st_ino] = status.st_blocks * 512
            except FileNotFoundError:
                pass
    return found


def allocated_bytes(volume):
    """Of all files below it, by their blocks; what goes away meanwhile counts nothing."""
    return sum(bytes_by_file(volume).values())


def bytes_at_once(volume):
    """Of all files together, no more than they had at one moment. A walk does not see one moment: where it is held up, it counts what made room and
    what came in its place. So there are two, and each file counts with the lower of its sizes in them: between the two it had at least that many, unless it was changed twice."""
    first, second = bytes_by_file(volume), bytes_by_file(volume)
    return sum(min(count, second.get(inode, 0)) for inode, count in first.items())


class Sampler:
    """Calls look() every `interval` seconds, on a thread of its own, in a `with`."""

    def __init__(self, interval):
        self._interval = interval
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def look(self):
        raise NotImplementedError

    def _run(self):
        while not self._end.wait(self._interval):
            self.look()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        self._thread.join()


class Samples(Sampler):
    """The most that the volume came to."""

    def __init__(self, volume):
        super().__init__(0.05)
        self.volume, self.most = volume, 0

    def look(self):
        self.most = max(self.most, bytes_at_once(self.volume))
