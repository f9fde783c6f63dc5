"""The figures of one moment of a run, a training rollout or an evaluation, from its episodes' records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from slime_swe.launch.export.episodes import TRAINING
from slime_swe.rollout.group_outcomes import group_outcome
from slime_swe.rollout.metrics import episode_metrics, wilson_interval
from slime_swe.rollout.records import Record, is_broken

_COMPONENT = "reward/"

Segments = list[Record]  # of one episode


def moment_figures(episodes: Sequence[Segments]) -> dict[str, Any]:
    """Of JSON's types. Means are over the episodes that infrastructure did not break; seconds are an episode's."""
    first = episodes[0][0]
    sound = [segments for segments in episodes if not is_broken(segments)]
    means = episode_metrics(record for segments in episodes for record in segments)
    solved = sum(segments[0].solved for segments in sound)
    tasks: dict[str, list[int]] = {}
    for segments in sound:
        counts = tasks.setdefault(task_of(segments), [0, 0])
        counts[0] += segments[0].solved
        counts[1] += 1
    return {
        "set": first.dataset or TRAINING,
        "rollout": first.rollout_id,
        "episodes": len(episodes),
        "broken": len(episodes) - len(sound),
        "solved": solved,
        "solve_rate": means.get("solve_rate"),
        "solve_interval": wilson_interval(solved, len(sound)),
        "reward": means.get("reward"),
        "reward_interval": _mean_interval(sound),
        "components": {name[len(_COMPONENT) :]: value for name, value in means.items() if name.startswith(_COMPONENT)},
        "stops": Counter(stop_reason(segments) for segments in episodes),
        "groups": Counter(group_kind(group) for group in groups_of(episodes).values()),
        "seconds": _seconds(means),
        "tasks": tasks,
    }


def groups_of(episodes: Sequence[Segments]) -> dict[Any, list[Segments]]:
    """The episodes of each group; of an episode without one, those of its task."""
    groups: dict[Any, list[Segments]] = {}
    for segments in episodes:
        number = segments[0].group_index
        groups.setdefault(task_of(segments) if number is None else number, []).append(segments)
    return groups


def group_kind(group: Sequence[Segments]) -> str:
    """What it teaches, in words: only an informative group has advantages other than zero, under a binary reward."""
    return in_words(group_outcome(record for segments in group for record in segments))


def in_words(outcome: str) -> str:
    return outcome.replace("_", " ")


def task_of(segments: Segments) -> str:
    return segments[0].task or "unnamed"


def stop_reason(segments: Segments) -> str:
    episode = segments[0].episode
    return (episode.stop_reason if episode else "") or "not recorded"


def _mean_interval(sound: Sequence[Segments]) -> tuple[float, float] | None:
    """95 % of the mean reward over episodes, of which those of one group resemble each other.

    With n_g episodes of sum S_g in group g, N in all and m their mean, error² = G / (G - 1) sum_g (S_g - n_g m)² / N²
    (that of a ratio estimate, Cochran 1977, chapter 6), with Student's t on G - 1. None where that says nothing:
    of one group, or where no group differs from the mean.
    """
    groups = [[segments[0].reward or 0.0 for segments in group] for group in groups_of(sound).values()]
    if len(groups) < 2:
        return None
    count = sum(map(len, groups))
    mean = math.fsum(map(math.fsum, groups)) / count
    squares = math.fsum((math.fsum(rewards) - len(rewards) * mean) ** 2 for rewards in groups)
    error = math.sqrt(len(groups) / (len(groups) - 1) * squares) / count
    if error < 1e-12 * max(1.0, abs(mean)):  # but for rounding, nothing varies
        return None
    half = student95(len(groups) - 1) * error
    return mean - half, mean + half


@cache
def student95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t, from its distribution with whole degrees of freedom (Abramowitz and
    Stegun 1964, 26.7.3 and 26.7.4). SciPy, which has it, is not installed everywhere that reports are written."""
    low, high = 0.0, math.pi / 2
    while high - low > 1e-14:
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < 0.95 else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """The probability that |t| is at most sqrt(degrees) tan(angle)."""
    odd, square = degrees % 2, math.cos(angle) ** 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term *= square * (power - 1) / power
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _seconds(means: dict[str, float]) -> dict[str, float]:
    """Of an episode: waiting for the model, waiting for the sandbox, and the rest."""
    if "seconds" not in means:
        return {}
    engine, sandbox = means["engine_seconds"], means["sandbox_seconds"]
    return {"model": engine, "sandbox": sandbox, "other": max(0.0, means["seconds"] - engine - sandbox)}
