"""Refuse a run whose sandbox and grader a known cheat gets past."""

from __future__ import annotations

import sys

from data_sources.registry import load_tasks
from recipes.base import Data, Recipe, Reward
from rewards.grade import HarnessSettings
from rewards.integrity.proof import require_integrity
from rewards.integrity.targets import grader_of


def check_integrity(recipe: Recipe, *, ignore: bool = False) -> None:
    """Raises `IntegrityError` where the gate of the recipe's sandbox does not hold for the way in which its training
    tasks are graded; says so where that is ignored.

    A reward function or a data source of the person's own is not checked: there is no telling what it does.
    """
    if recipe.reward.function != Reward.function or recipe.data.source != Data.source:
        return
    if ignore:
        print("the integrity gate is ignored: a policy may learn to cheat", file=sys.stderr)
        return
    harness = HarnessSettings(recipe.reward.harness_python, recipe.reward.harness == "official")
    for grader in sorted({grader_of(task) for spec in recipe.data.train for task in load_tasks(spec)}):
        require_integrity(recipe.rollout.sandbox, grader, harness)
