"""What a run of the tests leaves out, on a suite of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.selection import SHARES, asked_share, share_of

ROOT = Path(__file__).parents[1]
pytest_plugins = ["pytester"]
SUITE = """\
import pytest

def test_always(): pass

@pytest.mark.matrix("numbers")
@pytest.mark.parametrize("number", range(40))
def test_number(number): pass

@pytest.mark.parametrize("letter", ["a", pytest.param("b", marks=pytest.mark.matrix("letters"))])
def test_letter(letter): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run the suite with these words: the tests that passed, and the report."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeini("[pytest]\nmarkers = matrix(table): a row\nasyncio_default_fixture_loop_scope = function")
    git(pytester.path, "init", "-q")
    commit(pytester.path)

    def with_words(*words: str) -> tuple[set[str], str]:
        result = pytester.runpytest("-rA", *words)
        passed = {line.partition("::")[2] for line in result.outlines if line.startswith("PASSED ")}
        return passed, "\n".join([*result.outlines, *result.errlines])

    return with_words


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", "one more")


EVERY = {"test_always", "test_letter[a]", "test_letter[b]", *(f"test_number[{number}]" for number in range(40))}


@pytest.mark.parametrize("words", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["one process", "two workers"])
def test_the_rows_left_out_are_reported_by_table(run, words):
    passed, report = run(*words)
    assert passed == {"test_always", "test_letter[a]"}
    assert "left out: 40 of 40 tests marked matrix (numbers)\n" in report
    assert "left out: 1 of 1 tests marked matrix (letters)\n" in report
    assert "--all runs them" in report


def test_a_group_and_a_file_stay_on_one_worker(run, pytester):
    """Such as the tests that start a Ray: two at a time would take each other's for a stranger's."""
    rows = "import pytest\n@pytest.mark.parametrize('row', range(9))\ndef test_row(row): pass\n"
    grouped = rows + "pytestmark = pytest.mark.xdist_group('one')\n"
    pytester.makepyfile(test_a=grouped, test_b=rows, test_c=grouped)
    report = run("-v", "-n", "2", "--dist", "loadgroup", "test_a.py", "test_b.py", "test_c.py")[1]
    placed = set(re.findall(r"\[(gw\d)\] .* PASSED test_([abc])\.py", report))
    assert len(placed) == 3, report
    workers = {file: worker for worker, file in placed}
    assert workers["a"] == workers["c"] != workers["b"]


@pytest.mark.parametrize("words", [["--all"], ["-m", "matrix or not matrix"]])
def test_all_takes_every_test(run, words):
    passed, report = run(*words)
    assert passed == EVERY
    assert "left out" not in report


def test_a_test_that_is_named_is_taken(run):
    assert run("test_suite.py::test_number[7]")[0] == {"test_number[7]"}


def test_the_eight_shares_hold_each_row_once_and_every_test_that_is_always_run(run):
    shares = [run("--share", f"{share}/{SHARES}")[0] for share in range(1, SHARES + 1)]
    always = {"test_always", "test_letter[a]"}
    assert all(always < share for share in shares)
    assert sorted(name for share in shares for name in share - always) == sorted(EVERY - always)


def test_the_share_moves_on_with_each_commit(run, pytester):
    shares = []
    for _ in range(SHARES):
        shares.append(run("--share", "commit")[0])
        commit(pytester.path)
    assert set.union(*shares) == EVERY


def test_a_clone_without_history_takes_a_share_too(run, pytester, tmp_path):
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{pytester.path}", "clone")
    share, shares = asked_share("commit", tmp_path / "clone")
    assert 1 <= share <= shares == SHARES


@pytest.mark.parametrize("share", ["0/8", "9/8", "3", "a/8", "3/"])
def test_a_share_that_is_none_is_refused(run, share):
    assert f"--share {share}: give K/N" in run("--share", share)[1]


def test_a_row_says_what_its_table_is_of(run, pytester):
    pytester.makepyfile(test_suite="import pytest\n\n@pytest.mark.matrix\ndef test_one(): pass\n")
    assert "say what the table is of" in run()[1]


def test_shares_are_of_like_size():
    sizes = [
        sum(share_of(f"tests/test_a.py::test_b[{i}]", SHARES) == share for i in range(800)) for share in range(1, 9)
    ]
    assert sum(sizes) == 800 and min(sizes) > 50
