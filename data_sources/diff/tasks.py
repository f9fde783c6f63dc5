"""The synthetic tasks with their tests left out of the oracle: `load("train" | "heldout" | "unseen")`.

Graded as `swe_rl`; `load("train/code_repair_rl")` and so on are graded by that reward.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.data_sources.diff.oracle import REWARDS, DiffOracle
from slime_swe.data_sources.synthetic.tasks import load as load_synthetic
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError, unknown


def load(split: str) -> list[Task]:
    """The tasks of a split, always the same. Raises `UserError` for an unknown split or reward."""
    name, slash, reward = split.partition("/")
    if slash and reward not in REWARDS:
        raise UserError(unknown(f"reward of the tasks diff:{split}", reward, REWARDS))
    return [_without_tests(task, reward or REWARDS[0]) for task in load_synthetic(name)]


def _without_tests(task: Task, reward: str) -> Task:
    known = task.oracle
    oracle = DiffOracle(protected=known.protected, command=known.command, gold_patch=known.gold_patch, reward=reward)  # type: ignore[arg-type]
    return replace(task, id=task.id.replace("synthetic", "diff", 1), oracle=oracle, source="diff")
