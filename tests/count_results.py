#!/usr/bin/env python3
"""Adds up the stages of a test run: count_results.py DIRECTORY.

Each directory below DIRECTORY is a stage, written by run.sh: `status` (exit status of its command), JUnit files of
pytest and ctest (*.xml), GoogleTest's own reports (gtest/*.xml), and `leftovers` and `reports` when something was left
behind or a sanitizer spoke. Prints what was skipped and what failed, with what it said, and last 'N passed, N failed'.
Exit status 1 when something failed or nothing ran.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree


class Count:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


MOST_SAID_LINES = 12


def what_it_said(case):
    """The first lines of a failure's message, indented: the log of a whole run is long and may be kept in part only."""
    said = []
    for element in case.iter():
        if element.tag in ("failure", "error"):
            said += (element.get("message") or element.text or "").strip().splitlines()
    shown = [line[:300] for line in said if line.strip()][:MOST_SAID_LINES]
    return "".join(f"\n    {line}" for line in shown)


def count_file(path):
    """The test cases of one JUnit file, of whichever of the three programs. None when it was cut off (a crash)."""
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except ElementTree.ParseError:
        return None
    count = Count()
    for case in cases:
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            count.failed.append(name + what_it_said(case))
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            count.skipped.append(name)
        else:
            count.passed += 1
    return count


def count_ctest(stage, path):
    """A GoogleTest binary counts by its cases; one that ended badly without a failed case (a crash, a leak found at
    exit, a time-out) counts as one failure besides."""
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name")
        own_path = os.path.join(stage, "gtest", name + ".xml")
        own = count_file(own_path) if os.path.exists(own_path) else None
        failed = case.get("status") == "fail" or case.find("failure") is not None
        if own is not None:
            own.failed = [f"{name}: {each}" for each in own.failed]
            count.add(own)
            if failed and not own.failed:
                count.failed.append(f"{name}: failed outside of its test cases")
        elif failed:
            count.failed.append(name)
        elif case.get("status") in ("notrun", "disabled"):
            count.skipped.append(name)
        else:
            count.passed += 1
    return count


def count_stage(stage):
    count = Count()
    for entry in sorted(os.listdir(stage)):
        if entry == "ctest.xml":
            count.add(count_ctest(stage, os.path.join(stage, entry)))
        elif entry.endswith(".xml"):
            part = count_file(os.path.join(stage, entry))
            if part is None:
                count.failed.append(f"{entry} is not whole")
            else:
                count.add(part)
    status_path = os.path.join(stage, "status")
    status = open(status_path, encoding="ascii").read().strip() if os.path.exists(status_path) else "never ended"
    if status != "0" and not count.failed:
        count.failed.append(f"ended with status {status}")
    for entry, what in (("leftovers", "left something behind"), ("reports", "a sanitizer reported errors")):
        path = os.path.join(stage, entry)
        if os.path.exists(path) and os.path.getsize(path) > 0:
            count.failed.append(what)
    name = os.path.basename(stage)
    count.failed = [f"{name}: {each}" for each in count.failed]
    count.skipped = [f"{name}: {each}" for each in count.skipped]
    return count


def main(directory):
    total = Count()
    for entry in sorted(os.listdir(directory)):
        count = count_stage(os.path.join(directory, entry))
        print(f"{entry}: {count.passed} passed, {len(count.failed)} failed, {len(count.skipped)} skipped")
        total.add(count)
    for each in total.skipped:
        print(f"SKIPPED {each}")
    for each in total.failed:
        print(f"FAILED {each}")
    print(f"{total.passed} passed, {len(total.failed)} failed")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
