"""What a run or an evaluation has played: the patches that agents wrote, and how often each task was solved."""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slime_swe.data_sources.factory.tasks import by_solve_rate
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.launch.export.episodes import read_episodes
from slime_swe.launch.runs import find_run
from slime_swe.launch.selection import Selected, select
from slime_swe.redaction import secrets_of

_EVERY = Namespace(
    rollout=None, task=None, evaluation=None, solved=None, broken=False, min_reward=None, max_reward=None
)


def patches_of(run: str, runs: str) -> list[tuple[str, str]]:
    """(task's id, patch) of each episode that infrastructure did not break. Raises `UserError`."""
    folder, journal, selected = _selected(run, runs)
    episodes = read_episodes(folder, journal, selected, secrets_of(os.environ))
    return [(episode.task, episode.patch) for episode in episodes if episode.patch]


def solve_rates(run: str, runs: str) -> dict[str, float]:
    """Task's id → share of its episodes that solved it. Raises `UserError`."""
    _, _, selected = _selected(run, runs)
    episodes = {(one.dataset, one.rollout, one.task, one.trajectory, one.index): one for _, one in selected}
    played = Counter(one.task for one in episodes.values())
    solved = Counter(one.task for one in episodes.values() if one.outcome == "solved")
    return {name: solved[name] / count for name, count in played.items() if name is not None}


def with_rate(task: Task, rate: float | None) -> Task:
    """Its difficulty by the rate; as it is where none is known."""
    if rate is None:
        return task
    found: Mapping[str, object] = {**task.metadata, "solve_rate": round(rate, 4), "difficulty": by_solve_rate(rate)}
    return replace(task, metadata=found)


def _selected(run: str, runs: str) -> tuple[Path, Path, Selected]:
    folder = find_run(run, runs)
    journal, selected = select(folder, _EVERY)
    if not selected:
        raise UserError(f"{journal} has no episode that infrastructure did not break")
    return folder, journal, selected
