"""What a control's runs say of a patch, whatever runs them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import replace

import pytest

from data_sources.task import TestOracle
from rewards.control import Control, controlled
from rewards.score import GraderError
from rewards.verdict import Trial
from rollout.patch import PatchError

A, B, C = TESTS = ("t.py::a", "t.py::b", "t.py::c")
ORACLE = TestOracle((A,), (B, C), (), "run", gold_patch="gold")
EARNED = Trial(dict.fromkeys(TESTS, True), True, "")


class Runs:
    """Falsified runs by what they tell: for each run of a patch in turn, of each test `F`, `P`, or nothing `.`;
    `-` is a test that can't be falsified."""

    def __init__(self, **told: str | list[str]) -> None:
        self._told = {patch: [tells] if isinstance(tells, str) else list(tells) for patch, tells in told.items()}
        self.asked: list[tuple[str, set[str]]] = []

    async def __call__(self, patch: str, tests: Collection[str]) -> Control:
        self.asked.append((patch, set(tests)))
        tells = dict(zip(TESTS, self._told[patch].pop(0), strict=True))
        named = {letter: frozenset(test for test in tests if tells[test] == letter) for letter in "FP.-"}
        return Control(frozenset(tests) - named["-"], named["F"], named["P"])


def judged(runs: Runs, trial: Trial = EARNED, oracle: TestOracle = ORACLE) -> Trial:
    return asyncio.run(controlled(trial, oracle, "mine", runs))


@pytest.mark.parametrize(
    ("told", "failed", "runs"),
    [
        ({"mine": "FFF"}, 3, 1),
        ({"mine": "FF-"}, 2, 1),
        ({"mine": "---"}, 0, 1),
        ({"mine": "F..", "gold": "..."}, 1, 2),  # the log tells of passes alone
        ({"mine": "FFP", "gold": "FFP"}, 2, 2),  # a test that is expected to fail, or skipped
        ({"mine": ["F..", ".F."], "gold": ".F."}, 2, 3),  # the runner stops at the first failure
        ({"mine": ["...", "FFF"], "gold": "FFF"}, 3, 3),  # an accident
    ],
)
def test_honest_work_is_believed(told, failed, runs):
    given = Runs(**told)
    trial = judged(given)
    assert trial == replace(EARNED, details={"falsified_tests": failed})
    assert len(given.asked) == runs


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"mine": "PFF", "gold": "FFF"}, "pass even when they are falsified: t.py::a"),
        ({"mine": "PP.", "gold": "..P"}, "pass even when they are falsified: t.py::a, t.py::b"),
        ({"mine": "FF.", "gold": "FFF"}, "no failure is told .* gold patch: t.py::c"),
        ({"mine": ["...", "..."], "gold": "FFF"}, "t.py::a, t.py::b, t.py::c"),
        ({"mine": ["...", "FFP"], "gold": "FFF"}, "no failure is told .*: t.py::c"),
        ({"mine": ["F..", "..."], "gold": ".F."}, "no failure is told .*: t.py::b"),
    ],
)
def test_what_passes_or_is_silent_where_the_gold_patch_fails_is_forged(told, why):
    mine = told["mine"] if isinstance(told["mine"], list) else [told["mine"]] * 2
    trial = judged(Runs(**told | {"mine": mine}))
    assert (trial.solved, trial.refuted) == (False, "forged")
    assert re.search(why, trial.details["disbelief"])


def test_only_what_is_in_doubt_is_falsified_again():
    given = Runs(mine=["F.P", "FFP"], gold="FFP")
    judged(given)
    assert given.asked == [("mine", {A, B, C}), ("gold", {B, C}), ("mine", {B, C})]


def test_what_earns_nothing_needs_no_control():
    trial = replace(EARNED, tests={A: False, B: True, C: True}, solved=False)
    assert judged(Runs(), trial) is trial


def test_a_gold_patch_that_can_not_be_applied_is_the_task_s_fault():
    async def run(patch: str, tests: Collection[str]) -> Control:
        if patch == "gold":
            raise PatchError("t.py is not there")
        return Control(frozenset(tests), frozenset(), frozenset())

    with pytest.raises(GraderError, match=r"gold patch can't be applied: t\.py is not there"):
        asyncio.run(controlled(EARNED, ORACLE, "mine", run))
