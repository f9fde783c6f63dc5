"""What an agent is asked, how hard it is, and which tasks are nearly the same."""

from __future__ import annotations

import pytest

from slime_swe.data_sources.factory.tasks import balanced, by_solve_rate, distinct, size_of, statement
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch

BROKEN, RIGHT = "def total(a):\n    return a - 1\n", "def total(a):\n    return a + 1234\n"
GOLD = make_patch({"shop.py": BROKEN}, {"shop.py": RIGHT})


def test_a_statement_shows_failures_and_the_command():
    failures = {f"t.py::test_{n}": f"E   assert {n} == <object at 0x7f00deadbeef>" for n in range(5)}
    text = statement("faults", "shop", failures, "python3 -m pytest", GOLD, [BROKEN])
    assert text.startswith("5 of the tests of shop fail.")
    assert "assert 0 == <object at 0x…>" in text and "test_4" not in text and "and 2 more." in text
    assert text.rstrip().endswith("python3 -m pytest")


def test_an_output_that_holds_the_fix_is_not_shown():
    leak = {"t.py::test": "shop.py:2:\n    return a + 1234\nE   assert 1"}
    text = statement("faults", "shop", leak, "pytest", GOLD, [BROKEN])
    assert "1234" not in text and "t.py::test" in text
    assert "1234" in statement("faults", "shop", leak, "pytest", GOLD, [BROKEN, "    return a + 1234\n"])


def test_size_grows_with_lines_places_and_failures_that_say_little():
    level = {errors: size_of(GOLD, 1, [errors])["difficulty"] for errors in ("NameError", "AssertionError")}
    assert level == {"NameError": "easy", "AssertionError": "medium"}
    assert size_of(GOLD, 3, ["AssertionError"])["difficulty"] == "hard"
    assert [by_solve_rate(rate) for rate in (0.9, 0.5, 0.1)] == ["easy", "medium", "hard"]


def task(name: str, kind: str = "op", gold: str = GOLD, source: str = "factory-faults") -> Task:
    oracle = TestsOracle(("t.py::test",), command="pytest", gold_patch=gold)
    return Task(name, "", Workspace({"shop.py": BROKEN}), oracle, source, metadata={"kind": kind, "repo": "shop"})


def test_near_duplicates_are_merged():
    same_fix = make_patch({"shop.py": BROKEN.replace("-", "/")}, {"shop.py": RIGHT})
    other = make_patch({"shop.py": BROKEN}, {"shop.py": "def total(a):\n    return abs(a)\n"})
    kept = distinct([task("one"), task("two", "cond"), task("three", gold=same_fix), task("four", gold=other)])
    assert [one.id for one in kept] == ["one", "four"]


@pytest.mark.parametrize(
    "counts", [{"a": 50, "b": 10, "c": 10, "d": 3}, {"a": 9, "b": 9, "c": 9}, {"a": 2, "b": 1, "c": 1}]
)
def test_at_most_a_third_is_by_one_modifier(counts):
    tasks = [task(f"{kind}{number}", kind) for kind, count in counts.items() for number in range(count)]
    kept = [one.metadata["kind"] for one in balanced(tasks)]
    assert max(map(kept.count, counts)) <= len(kept) / 3
    assert {kind: kept.count(kind) for kind in counts if kind != "a"} == {k: c for k, c in counts.items() if k != "a"}


def test_kinds_are_those_of_faults_alone():
    assert len(balanced([task(str(number), "release", source="factory-releases") for number in range(9)])) == 9
    assert len(balanced([task("one"), task("two")])) == 2, "too few kinds for any selection"
