"""What a run of the tests leaves out, and what it looks at twice, on suites of their own."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_look import KEPT, MOST_FAILURES, MOST_FLAKY

ROOT = Path(__file__).parents[1]
pytest_plugins = ["pytester"]
SUITE = """\
import pytest

def test_always(): pass

@pytest.mark.extended("test_suite.py::test_always")
@pytest.mark.parametrize("number", range(40))
def test_number(number): pass

@pytest.mark.parametrize("letter", ["a", pytest.param("b", marks=pytest.mark.extended("letters"))])
def test_letter(letter): pass
"""
WORKERS = ["-n", "2", "--dist", "loadgroup"]


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeini("[pytest]\nmarkers = extended(guard): a row\nasyncio_default_fixture_loop_scope = function")


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run the suite with these words: the tests that passed, and the report."""

    def with_words(*words: str) -> tuple[set[str], str]:
        result = pytester.runpytest("-rA", *words)
        passed = {line.partition("::")[2] for line in result.outlines if line.startswith("PASSED ")}
        return passed, "\n".join([*result.outlines, *result.errlines])

    return with_words


DEFAULT = {"test_always", "test_letter[a]"}
EVERY = {*DEFAULT, "test_letter[b]", *(f"test_number[{number}]" for number in range(40))}


@pytest.mark.parametrize("words", [[], WORKERS], ids=["one process", "two workers"])
def test_extended_tests_are_left_out_and_counted(run, words):
    passed, report = run(*words)
    assert passed == DEFAULT
    assert "left out: 41 extended tests" in report


def test_a_group_and_a_file_stay_on_one_worker(run, pytester):
    """Such as the tests that start a Ray: two at a time would take each other's for a stranger's."""
    rows = "import pytest\n@pytest.mark.parametrize('row', range(9))\ndef test_row(row): pass\n"
    grouped = rows + "pytestmark = pytest.mark.xdist_group('one')\n"
    pytester.makepyfile(test_a=grouped, test_b=rows, test_c=grouped)
    report = run("-v", *WORKERS, "test_a.py", "test_b.py", "test_c.py")[1]
    placed = set(re.findall(r"\[(gw\d)\] .* PASSED test_([abc])\.py", report))
    assert len(placed) == 3, report
    workers = {file: worker for worker, file in placed}
    assert workers["a"] == workers["c"] != workers["b"]


@pytest.mark.parametrize("words", [["--all"], ["-m", "extended or not extended"]])
def test_all_takes_every_test(run, words):
    passed, report = run(*words)
    assert passed == EVERY
    assert "left out" not in report


def test_a_test_that_is_named_is_taken(run):
    assert run("test_suite.py::test_number[7]")[0] == {"test_number[7]"}


@pytest.mark.parametrize("words", [[], WORKERS], ids=["one process", "two workers"])
def test_an_extended_test_names_its_guard(run, pytester, words):
    pytester.makepyfile(test_suite="import pytest\n\n@pytest.mark.extended\ndef test_one(): pass\n")
    passed, report = run(*words)
    assert "name what guards the same in the default set" in report and not passed


TABLE = """\
import pytest

@pytest.mark.parametrize("row", [{rows} pytest.param("b", marks=pytest.mark.extended("rows"))])
def test_row(row): assert row == "b"
"""


@pytest.mark.parametrize(
    "words", [[], ["--all"], ["-p", "no:cacheprovider"], WORKERS], ids=["default", "all", "no cache", "two workers"]
)
def test_a_guard_in_words_has_a_row_in_the_default_set(run, pytester, words):
    """Else a table whose rows are all marked one after another has left the default set without a word."""
    pytester.makepyfile(test_suite=TABLE.format(rows=""))
    assert (
        "is in the default set; name a test that guards the same:\n  test_suite.py::test_row: 'rows'" in run(*words)[1]
    )
    pytester.makepyfile(test_suite=TABLE.format(rows="'a',"))
    assert "name a test that guards the same" not in run(*words)[1]


@pytest.mark.parametrize("words", [["test_suite.py::test_row[b]"], ["--lf", "--all"]], ids=["named", "once more"])
def test_a_row_of_a_table_is_taken_without_the_others(run, pytester, words):
    failing = TABLE.format(rows="'a',").replace('== "b"', '!= "b"')
    pytester.makepyfile(test_suite=failing)
    assert run("--all")[0] == {"test_row[a]"}
    mended = failing.replace("!=", "==") + "\n# of another size: within a second Python would take what it has compiled"
    pytester.makepyfile(test_suite=mended)
    assert run(*words)[0] == {"test_row[b]"}


def test_a_guard_that_is_named_as_a_test_is_one_of_the_default_set():
    guards = [
        guard
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__)
        for guard in re.findall(r"mark\.extended\(\s*\"(\S+\.py::\w+)\"", path.read_text())
    ]
    for guard in guards:
        file, _, name = guard.partition("::")
        tests = {node.name: node for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
        assert name in tests, guard
        marks = map(ast.unparse, tests[name].decorator_list)
        assert not any(mark.startswith("pytest.mark.extended") for mark in marks), guard


@pytest.mark.parametrize("words", [[], ["-n", "1"]], ids=["one process", "a worker"])
def test_a_default_set_over_its_budget_fails_and_says_so(pytester, monkeypatch, words):
    pytester.makeini(
        "[pytest]\nmarkers = extended(guard): a row\ntestpaths = .\nasyncio_default_fixture_loop_scope = function"
    )
    monkeypatch.setattr("tests.costs.FEW", 0.0)
    assert pytester.runpytest(*words).ret == 0
    monkeypatch.setattr("tests.costs.BUDGET", 0)
    over = pytester.runpytest(*words)
    assert over.ret == pytest.ExitCode.TESTS_FAILED
    over.stdout.fnmatch_lines(["The default set took more than 2 times the 0 yardsticks*"])
    assert pytester.runpytest(*words, "-k", "always").ret == 0


FAILING = """\
import os, pytest

@pytest.mark.parametrize("row", range({flaky}))
def test_flaky(row):
    print("looked at", row)
    marker = f"seen{{row}}"
    seen = os.path.exists(marker)
    open(marker, "w").close()
    assert seen, "the first time"

@pytest.mark.parametrize("row", range({broken}))
def test_broken(row):
    assert False, "each time"

def test_right(): pass
"""


def looked(pytester: pytest.Pytester, *words: str, flaky: int = 0, broken: int = 0) -> tuple[int, str]:
    pytester.makepyfile(test_suite=FAILING.format(flaky=flaky, broken=broken))
    command = [sys.executable, "-m", "tests.second_look", "-q", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=pytester.path, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("words", [[], WORKERS], ids=["one process", "two workers"])
def test_what_passes_alone_is_flaky_and_fails_no_run(pytester, words):
    code, said = looked(pytester, *words, flaky=MOST_FLAKY)
    assert code == 0, said
    assert re.findall("^FLAKY (.*)$", said, re.MULTILINE) == [
        f"test_suite.py::test_flaky[{row}]" for row in range(MOST_FLAKY)
    ]
    assert "the first time" in (pytester.path / KEPT / "first.txt").read_text()
    assert "looked at 1" in (pytester.path / KEPT / "second.txt").read_text()


def test_what_fails_again_fails_the_run(pytester):
    code, said = looked(pytester, flaky=1, broken=1)
    assert code == 1
    assert "FLAKY test_suite.py::test_flaky[0]" in said
    assert "FAILED TWICE test_suite.py::test_broken[0]" in said


def test_many_flaky_tests_fail_the_run(pytester):
    code, said = looked(pytester, flaky=MOST_FLAKY + 1)
    assert code == 1 and f"More than {MOST_FLAKY} flaky tests" in said


def test_what_is_no_accident_is_not_looked_at_twice(pytester):
    code, said = looked(pytester, broken=MOST_FAILURES + 1)
    assert code == 1 and "once more" not in said
    assert looked(pytester, "--no-such-option")[0] == pytest.ExitCode.USAGE_ERROR
