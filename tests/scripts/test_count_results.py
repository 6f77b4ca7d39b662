"""count_results.py: what counts as passed and failed, above all when a program did not get as far as its report."""

import subprocess
import sys

import pytest

CTEST = '<testsuite>{}</testsuite>'
PASSED, FAILED = '<testcase name="{}" status="run"/>', '<testcase name="{}" status="fail"><failure/></testcase>'
GTEST = '<testsuites><testsuite name="S">{}</testsuite></testsuites>'
CASE, BAD = '<testcase name="{}" classname="S"/>', '<testcase name="{}" classname="S"><failure/></testcase>'


@pytest.fixture
def count(repository, tmp_path):
    """count({stage: {file: text}}) -> (exit status, lines of output)."""

    def run(stages):
        for stage, files in stages.items():
            for name, text in {"status": "0", **files}.items():
                path = tmp_path / stage / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        done = subprocess.run([sys.executable, "-B", repository / "tests" / "count_results.py", tmp_path], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=True if not stages else False)
        return done.returncode, done.stdout.splitlines()

    return run


def last_line(result):
    return result[0], result[1][-1]


def test_a_binary_counts_by_its_cases(count):
    files = {"ctest.xml": CTEST.format(PASSED.format("a_test")), "gtest/a_test.xml": GTEST.format(CASE.format("x") + CASE.format("y"))}
    assert last_line(count({"ctest": files})) == (0, "2 passed, 0 failed")


def test_failed_case(count):
    files = {"ctest.xml": CTEST.format(FAILED.format("a_test")), "gtest/a_test.xml": GTEST.format(CASE.format("x") + BAD.format("y"))}
    status, lines = count({"ctest": files})
    assert (status, lines[-1]) == (1, "1 passed, 1 failed")
    assert "FAILED ctest: a_test: S.y" in lines


def test_what_a_failure_said(count):
    said = '<failure message="a.cc:7&#10;Expected: 1&#10;&#10;  Actual: 2"/>'
    files = {"ctest.xml": CTEST.format(FAILED.format("a_test")), "gtest/a_test.xml": GTEST.format(BAD.format("y").replace("<failure/>", said))}
    assert count({"ctest": files})[1][-5:] == ["FAILED ctest: a_test: S.y", "    a.cc:7", "    Expected: 1", "      Actual: 2", "0 passed, 1 failed"]
    lines = count({"pytest": {"pytest.xml": GTEST.format(BAD.format("z").replace("<failure/>", "<failure>" + "line\n" * 99 + "</failure>"))}})[1]
    assert lines.count("    line") == 12


def test_binary_that_crashed_without_a_report(count):
    assert last_line(count({"ctest": {"ctest.xml": CTEST.format(FAILED.format("a_test") + PASSED.format("b"))}})) == (1, "1 passed, 1 failed")


def test_binary_whose_cases_passed_but_not_its_end(count):
    files = {"ctest.xml": CTEST.format(FAILED.format("a_test")), "gtest/a_test.xml": GTEST.format(CASE.format("x"))}
    assert last_line(count({"ctest": files})) == (1, "1 passed, 1 failed")


def test_skips_are_named_and_no_passes(count):
    pytest_report = '<testsuites><testsuite><testcase classname="m" name="t"><skipped/></testcase></testsuite></testsuites>'
    status, lines = count({"pytest": {"pytest.xml": pytest_report}})
    assert (status, lines[-1]) == (1, "0 passed, 0 failed")  # a run in which nothing ran is no success
    assert "SKIPPED pytest: m.t" in lines


def test_command_that_failed_without_a_failed_case(count):
    assert last_line(count({"build": {"status": "2"}})) == (1, "0 passed, 1 failed")


@pytest.mark.parametrize("sign", ["leftovers", "reports"])
def test_leftovers_and_sanitizer_reports_are_failures(count, sign):
    files = {"pytest.xml": GTEST.format(CASE.format("x")), sign: "something\n"}
    assert last_line(count({"pytest": files})) == (1, "1 passed, 1 failed")
    assert last_line(count({"pytest": {**files, sign: ""}})) == (0, "1 passed, 0 failed")


def test_report_that_is_cut_off(count):
    assert last_line(count({"pytest": {"pytest.xml": "<testsuites><testsuite><testcase na"}})) == (1, "0 passed, 1 failed")
