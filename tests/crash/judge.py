"""What a mount shows after a crash, against what the manifest allows."""

import os
import re

import manifest
from kvc_data import describe_difference
from writers import body_of


def version_of(path, name, expected):
    """Which version a name shows; an error in words if it is none that it may show."""
    try:
        with open(path, "rb") as file:
            got = file.read()
    except FileNotFoundError:
        return 0, None if 0 in expected.allowed else f"{name} is lost: may show only {expected.allowed}"
    stem = re.sub(r"\.tmp\d+$", "", name)
    for version in expected.allowed:
        if version and got == body_of(stem, version):
            return version, None
    if not any(expected.allowed):
        return None, f"{name} is back ({len(got)} bytes): its removal was acknowledged"
    nearest = body_of(stem, max(expected.allowed))
    return None, f"{name} shows none of {expected.allowed}; next to the newest: {describe_difference(got, nearest)}"


def check(root, names):
    """({name: version}, problems) of everything below root."""
    found, problems = {}, []
    for name, expected in names.items():
        version, problem = version_of(os.path.join(root, name), name, expected)
        if problem:
            problems.append(problem)
        else:
            found[name] = version
    problems += [f"{name}: a name nobody made" for name in os.listdir(root) if name not in names]
    return found, problems


def allow_what_was_not_promised(names):
    """durability=none: what was answered may be lost; but it is whole, or absent, or what was there when the daemon started."""
    for expected in names.values():
        expected.allowed = sorted(set(expected.allowed) | {0} | set(expected.everything))


class Everything(manifest.Expected):
    """Keeps also what an acknowledgement rules out."""

    def __init__(self):
        super().__init__()
        self.everything = [0]

    def begin(self, version):
        super().begin(version)
        self.everything.append(version)
