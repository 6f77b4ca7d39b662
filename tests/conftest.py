# Tests that are ahead of the code: known_failures.txt names them with what is missing. They run and are reported as expected
# failures; one that passes is reported, too (and is to be taken off the list).
import pathlib

import pytest

LISTED = pathlib.Path(__file__).with_name("known_failures.txt")


def known_failures():
    for line in LISTED.read_text().splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            pattern, _, reason = line.partition("  ")
            yield pattern, reason.strip()


def pytest_collection_modifyitems(items):
    known = list(known_failures())
    for item in items:
        for pattern, reason in known:
            if pattern in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
