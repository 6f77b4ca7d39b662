"""Includes point down only, in the order of the rooms in CMakeLists.txt; files stay small; fs/ and tools/ know the store's face only.

What does not hold yet is listed in STILL_ALLOWED and STILL_LONG, which may only shrink: an entry that is no longer needed fails
the test, too.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
PEERS = [{"extent", "index"}, {"memory", "chain"}, {"recovery", "writeback"}, {"recovery", "readahead"}, {"writeback", "readahead"},
         {"recovery", "upkeep"}, {"recovery", "requests"}, {"upkeep", "requests"}]  # rooms that do not know each other
FACE = {"store", "store/api", "store/base", "store/check", "store/evict", "store/gc", "store/pair_check"}  # what fs/ and tools/ may know of the store (evict: pure policies, simulated)
STORE_FACE = {"store/store.h", "store/api/options.h", "store/counters.h"}  # of the files in store/ itself
MOST_LINES = {".cc": 500, ".h": 200}
STILL_ALLOWED = set()
STILL_LONG = set()


def rooms():
    listed = re.search(r"foreach\(room IN ITEMS([^)]*)\)", (ROOT / "CMakeLists.txt").read_text()).group(1).split()
    return listed[: listed.index("store/check")] + ["store"] + listed[listed.index("store/check"):]


def room_of(path, known):
    return next((room for room in sorted(known, key=len, reverse=True) if path.startswith(room + "/")), None)


def code():
    for path in sorted(p for top in ("store", "fs", "tools") for p in (ROOT / top).rglob("*") if p.suffix in MOST_LINES):
        if not path.stem.endswith(("_test", "_test_util")) and "testing" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_includes_point_down():
    known = rooms()
    broken = set()
    for path, text in code():
        mine = room_of(path, known)
        for included in INCLUDE.findall(text):
            other = room_of(included, known)
            if other in (None, mine):
                continue
            peers = {room.rpartition("/")[2] for room in (mine, other)} in PEERS
            hidden = mine in ("fs", "tools") and other.startswith("store") and (
                other not in FACE or (other == "store" and included not in STORE_FACE))
            if peers or hidden or known.index(other) > known.index(mine):
                broken.add(f"{path} includes {included}")
    assert broken == STILL_ALLOWED


def test_files_stay_small():
    long = {path for path, text in code() if text.count("\n") > MOST_LINES[pathlib.PurePath(path).suffix]}
    assert long == STILL_LONG
