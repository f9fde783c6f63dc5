"""Figures of rollouts and evaluations: pure functions of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from data_sources.sample import Sample
from rollout.records import trajectory_of

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def wilson_interval(successes: int, total: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a binomial share (Wilson 1927); (0, 1) where nothing was tried.

    It takes the trials as independent; several episodes of one task are not quite.
    """
    if total == 0:
        return 0.0, 1.0
    share, spread = successes / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == total else centre + half)


def trajectories(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by episode, in order of first appearance; those of one episode came from one rollout id."""
    by_episode: dict[Any, list[Sample]] = {}
    for place, sample in enumerate(samples):
        name = trajectory_of(sample)
        by_episode.setdefault(("unnamed", place) if name is None else name, []).append(sample)
    return list(by_episode.values())


def is_broken(segments: Sequence[Sample]) -> bool:
    """Whether infrastructure, not the policy, ended the episode."""
    return any(segment.status == Sample.Status.ABORTED for segment in segments)


def is_solved(segments: Sequence[Sample]) -> bool:
    """The binary outcome; of a reward hook that records none, whether the reward is positive."""
    score = (segments[0].metadata or {}).get("score")
    if score:
        return bool(score["solved"])
    return reward_of(segments) > 0


def reward_of(segments: Sequence[Sample]) -> float:
    reward = segments[0].reward
    return float(reward) if isinstance(reward, int | float) else 0.0


def outcome_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Counts, and means over the episodes that infrastructure did not break; the latter absent where there is none."""
    episodes = trajectories(samples)
    sound = [segments for segments in episodes if not is_broken(segments)]
    metrics = {"episodes": len(episodes), "infrastructure_failures": len(episodes) - len(sound)}
    if not sound:
        return dict(metrics)
    return metrics | {
        "reward": sum(map(reward_of, sound)) / len(sound),
        "solve_rate": sum(map(is_solved, sound)) / len(sound),
    }


def evaluation_metrics(samples: Sequence[Sample]) -> dict[str, Any]:
    """An evaluation's figures over its sound episodes, with their count and Wilson interval.

    `outcomes` holds, for each task, one 0 or 1 per episode in order of sampling, None where infrastructure broke it.
    """
    episodes = trajectories(samples)
    sound = [segments for segments in episodes if not is_broken(segments)]
    solved = sum(map(is_solved, sound))
    outcomes: dict[str, list[int | None]] = {}
    for segments in episodes:
        task = str(((segments[0].metadata or {}).get("task") or {}).get("id", segments[0].group_index))
        outcomes.setdefault(task, []).append(None if is_broken(segments) else int(is_solved(segments)))
    return {
        "episodes": len(sound),
        "tasks": len(outcomes),
        "infrastructure_failures": len(episodes) - len(sound),
        "solved": solved,
        "solve_rate": solved / len(sound) if sound else None,
        "interval": list(wilson_interval(solved, len(sound))),
        "reward": sum(map(reward_of, sound)) / len(sound) if sound else None,
        **_first_edit(sound),
        **_behaviour(sound),
        "outcomes": outcomes,
    }


def compare(before: Mapping[str, list[int | None]], after: Mapping[str, list[int | None]]) -> dict[str, Any]:
    """Paired by (task, place): who gained, who lost, and the exact two-sided sign test of that (McNemar 1947)."""
    pairs = [
        (old, new)
        for task in before
        for old, new in zip(before[task], after.get(task, []), strict=False)
        if old is not None and new is not None
    ]
    gained, lost = sum(pair == (0, 1) for pair in pairs), sum(pair == (1, 0) for pair in pairs)
    return {"pairs": len(pairs), "gained": gained, "lost": lost, "p_value": _sign_test(gained, lost)}


def _sign_test(a: int, b: int) -> float:
    n, k = a + b, min(a, b)
    tail: int = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2 * tail / (1 << n))


def _first_edit(sound: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """How often the first applied edit alone solved the task; absent where the reward hook does not grade it."""
    graded = [(segments[0].metadata or {}).get("score") or {} for segments in sound]
    known = [bool(score["first_edit_solved"]) for score in graded if "first_edit_solved" in score]
    return {"first_edit_solve_rate": sum(known) / len(known)} if known else {}


def _behaviour(sound: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Mean turns and edits and the share of each stop reason; absent where the generate hook does not report them."""
    reports = [report for segments in sound if (report := (segments[0].metadata or {}).get("episode"))]
    if not reports:
        return {}
    reasons = sorted({str(report["stop_reason"]) for report in reports})
    return {
        "turns": sum(report["turns"] for report in reports) / len(reports),
        "edits": sum(report["counters"].get("edits", 0) for report in reports) / len(reports),
        "stop_reasons": {name: sum(r["stop_reason"] == name for r in reports) / len(reports) for name in reasons},
    }
