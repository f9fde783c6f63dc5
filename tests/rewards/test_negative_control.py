"""What a control's runs say of a patch, whatever runs them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import replace

import pytest

from slime_swe.data_sources.task import TestsOracle
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError, Trial
from slime_swe.rewards.negative_control import ControlRun, with_negative_control

A, B, C = TESTS = ("t.py::a", "t.py::b", "t.py::c")
ORACLE = TestsOracle((A,), (B, C), (), "run", gold_patch="gold")
EARNED = Trial(dict.fromkeys(TESTS, True), True, "")


class Runs:
    """Mutated runs by what they report: for each run of a patch in turn, of each test `F`, `P`, or nothing `.`;
    `-` is a test that can't be mutated."""

    def __init__(self, **reported: str | list[str]) -> None:
        self._reported = {
            patch: [letters] if isinstance(letters, str) else list(letters) for patch, letters in reported.items()
        }
        self.asked: list[tuple[str, set[str]]] = []

    async def __call__(self, patch: str, tests: Collection[str]) -> ControlRun:
        self.asked.append((patch, set(tests)))
        letters = dict(zip(TESTS, self._reported[patch].pop(0), strict=True))
        named = {letter: frozenset(test for test in tests if letters[test] == letter) for letter in "FP.-"}
        return ControlRun(frozenset(tests) - named["-"], named["F"], named["P"])


def judged(runs: Runs, trial: Trial = EARNED, oracle: TestsOracle = ORACLE) -> Trial:
    return asyncio.run(with_negative_control(trial, oracle, "mine", runs))


@pytest.mark.parametrize(
    ("reported", "failed", "runs"),
    [
        ({"mine": "FFF"}, 3, 1),
        ({"mine": "FF-"}, 2, 1),
        ({"mine": "---"}, 0, 1),
        ({"mine": "F..", "gold": "..."}, 1, 2),  # the log letters of passes alone
        ({"mine": "FFP", "gold": "FFP"}, 2, 2),  # a test that is expected to fail, or skipped
        ({"mine": ["F..", ".F."], "gold": ".F."}, 2, 3),  # the runner stops at the first failure
        ({"mine": ["...", "FFF"], "gold": "FFF"}, 3, 3),  # an accident
    ],
)
def test_honest_work_is_believed(reported, failed, runs):
    given = Runs(**reported)
    trial = judged(given)
    assert trial == replace(EARNED, details={"mutated_tests": failed})
    assert len(given.asked) == runs


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ({"mine": "PFF", "gold": "FFF"}, "pass even when they are mutated: t.py::a"),
        ({"mine": "PP.", "gold": "..P"}, "pass even when they are mutated: t.py::a, t.py::b"),
        ({"mine": "FF.", "gold": "FFF"}, "these are not reported as failed .* gold patch: t.py::c"),
        ({"mine": ["...", "..."], "gold": "FFF"}, "t.py::a, t.py::b, t.py::c"),
        ({"mine": ["...", "FFP"], "gold": "FFF"}, "these are not reported as failed .*: t.py::c"),
        ({"mine": ["F..", "..."], "gold": ".F."}, "these are not reported as failed .*: t.py::b"),
    ],
)
def test_what_passes_or_is_silent_where_the_gold_patch_fails_is_forged(reported, why):
    mine = reported["mine"] if isinstance(reported["mine"], list) else [reported["mine"]] * 2
    trial = judged(Runs(**reported | {"mine": mine}))
    assert (trial.solved, trial.rejected) == (False, "forged")
    assert re.search(why, trial.details["rejection_reason"])


def test_only_what_is_in_doubt_is_mutated_again():
    given = Runs(mine=["F.P", "FFP"], gold="FFP")
    judged(given)
    assert given.asked == [("mine", {A, B, C}), ("gold", {B, C}), ("mine", {B, C})]


def test_what_is_not_rewarded_needs_no_control():
    trial = replace(EARNED, tests={A: False, B: True, C: True}, solved=False)
    assert judged(Runs(), trial) is trial


def test_a_gold_patch_that_can_not_be_applied_is_the_task_s_fault():
    async def run(patch: str, tests: Collection[str]) -> ControlRun:
        if patch == "gold":
            raise PatchError("t.py is not there")
        return ControlRun(frozenset(tests), frozenset(), frozenset())

    with pytest.raises(GraderError, match=r"gold patch can't be applied: t\.py is not there"):
        asyncio.run(with_negative_control(EARNED, ORACLE, "mine", run))
