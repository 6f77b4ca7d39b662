"""What a volume takes on its backing file system."""

import os
import threading


def allocated_bytes(volume):
    """Of all files below it, by their blocks; what goes away meanwhile counts nothing."""
    total = 0
    for where, _, names in os.walk(volume):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


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
    """The most that the volume came to. A walk does not see one moment: the lower of two counts."""

    def __init__(self, volume):
        super().__init__(0.05)
        self.volume, self.most = volume, 0

    def look(self):
        self.most = max(self.most, min(allocated_bytes(self.volume), allocated_bytes(self.volume)))
