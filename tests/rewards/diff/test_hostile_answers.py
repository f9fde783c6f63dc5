"""Answers that a policy wrote to do harm are compared, and raise nothing (`test_similarity`: in bounded time)."""

from __future__ import annotations

import random

import pytest

from slime_swe.data_sources.diff import REWARDS, DiffOracle
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.patches import PatchError, apply_reply, make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from tests.slime_swe.mutated_replies import honest, mutated

pytest.importorskip("cydifflib")
SHARES = [0, *(pytest.param(n, marks=pytest.mark.extended("mutated answers")) for n in range(1, 100))]


@pytest.mark.parametrize("share", SHARES)
async def test_a_mutated_answer_is_graded_between_its_bounds(share):
    """1,000 of the 100,000: replies as they are, and the patches that those which can be applied make."""
    dice = random.Random(share)
    for _, (files, reply) in zip(range(1_000), mutated(dice), strict=False):
        path = dice.choice([*files])
        gold = make_patch(files, files | {path: files[path] + honest(dice)[1]})
        task = Task("t", "s", Workspace(files), DiffOracle(gold_patch=gold, reward=dice.choice([*REWARDS])))
        try:
            patch = make_patch(files, apply_reply(files, reply))
        except PatchError:
            patch = reply
        score = await grade(task, patch, None, GradingSettings("fraction"))
        assert -1 <= score.value <= 1 and not (score.solved and patch != gold)
