"""What every worker needs: a place to meet the other processes, and the count of O_DIRECT opens."""

import ctypes
import os
import time

MEET_TIMEOUT_S = 60


class Meeting:
    """Processes that started together wait here for one another, by files in a directory outside the one under
    test. `None` means alone: nothing to wait for."""

    def __init__(self, meet: dict | None):
        self._meet = meet

    def at(self, point: str) -> None:
        """Returns when all have come to `point`. Raises when one of them does not, or another has failed."""
        if self._meet is None:
            return
        directory = self._meet["dir"]
        open(os.path.join(directory, f"{point}.{self._meet['who']}"), "x", encoding="ascii").close()
        expected = [os.path.join(directory, f"{point}.{who}") for who in range(self._meet["of"])]
        deadline = time.monotonic() + MEET_TIMEOUT_S
        while not all(map(os.path.exists, expected)):
            if os.path.exists(os.path.join(directory, "cancelled")):
                raise RuntimeError(f"another process failed before '{point}'")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the others did not come to '{point}' within {MEET_TIMEOUT_S} s")
            time.sleep(0.0005)


def direct_opens() -> dict[str, int]:
    """How many opens below the directory under test asked for O_DIRECT in this process, and what they got."""
    library = ctypes.CDLL("libopenlog.so")  # already loaded by LD_PRELOAD: found by its soname
    library.openlog_direct_granted.restype = ctypes.c_ulong
    library.openlog_direct_refused.restype = ctypes.c_ulong
    return {"granted": library.openlog_direct_granted(), "refused": library.openlog_direct_refused()}


def serve(names: list[str], batch: int, look_up, load, store, passes: int, pause_s: float = 0) -> dict[str, int]:
    """Requests as an engine makes them, `batch` names each: what `look_up` finds is loaded, what is absent, or `gone` since, is
    stored. `load` compares what it gets and returns the names that came. `early`: gone right after they were stored."""
    counts = {"loaded": 0, "absent": 0, "gone": 0, "early": 0}
    for _ in range(passes):
        for start in range(0, len(names), batch):
            wanted = names[start : start + batch]
            found = look_up(wanted)
            loaded = set(load(found)) if found else set()
            counts["loaded"] += len(loaded)
            counts["gone"] += len(found) - len(loaded)
            counts["absent"] += len(wanted) - len(found)
            missing = [name for name in wanted if name not in loaded]
            if missing:
                store(missing)
                counts["early"] += len(missing) - len(set(load(missing)))
            time.sleep(pause_s)
    return counts
