"""Figures of a batch of episodes: pure functions of their samples or records.

An episode with several samples counts once. Infrastructure failures are counted, and are in no other figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.records import EpisodeRecord, Record, record_of, trajectories
from slime_swe.sample import Sample

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_COUNTERS = ("edits", "failed_edits", "malformed_calls", "cut_turns")

Segments = list[Record]  # of one episode


def episode_metrics(samples: Iterable[Sample | Record], reward_key: str | None = None) -> dict[str, float]:
    """Means over a step's episodes, stop reasons one-hot. `episodes` and `infrastructure_failures` are counts, and so
    is what was tried again: `engine_retries/CAUSE` requests, `broken_attempts/STOP_REASON` episodes.

    A figure that no episode has a record of is absent. If infrastructure broke every episode, all means are absent.
    """
    episodes, sound = _sorted(samples, reward_key)
    counts = {"episodes": float(len(episodes)), "infrastructure_failures": float(len(episodes) - len(sound))}
    counts |= _retries(_reports(episodes))
    return {**counts, **_outcomes(sound), **_means(map(_sizes, sound)), **_means(map(_conduct, _reports(sound)))}


def evaluation_metrics(samples: Iterable[Sample | Record], reward_key: str | None = None) -> dict[str, Any]:
    """An evaluation's figures over its sound episodes, with their count and Wilson interval.

    `outcomes` holds, for each task, one 0 or 1 per episode in order of sampling, None where infrastructure broke it.
    `weight_versions` are those that sampled its turns, as the engines name them.
    """
    episodes, sound = _sorted(samples, reward_key)
    solved = sum(segments[0].solved for segments in sound)
    outcomes: dict[str, list[int | None]] = {}
    for segments in episodes:
        first = segments[0]
        broken = any(segment.broken for segment in segments)
        outcomes.setdefault(str(first.task or first.group_index), []).append(None if broken else int(first.solved))
    return {
        "episodes": len(sound),
        "tasks": len(outcomes),
        "infrastructure_failures": len(episodes) - len(sound),
        "solved": solved,
        "interval": list(wilson_interval(solved, len(sound))),
        **({"solve_rate": None, "reward": None} | _outcomes(sound)),
        **_first_edit(sound),
        **_behaviour(sound),
        "weight_versions": sorted({version for first, *_ in sound for version in first.weight_versions}),
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
    tail: int = sum(math.comb(gained + lost, i) for i in range(min(gained, lost) + 1))
    p_value = min(1.0, 2 * tail / (1 << (gained + lost)))
    return {"pairs": len(pairs), "gained": gained, "lost": lost, "p_value": p_value}


def why_untrained(steps: Sequence[Mapping[str, Any]]) -> str:
    """Why none of these rollouts trained a token. Empty if one did, or if their metrics don't say."""
    if not steps or any(step.get("trained_tokens") != 0 for step in steps):
        return ""
    rates = {step["solve_rate"] for step in steps if step.get("solve_rate") is not None}
    if not rates:
        return "infrastructure broke every episode"
    if all(step.get("masked") == 1.0 for step in steps):
        return "every episode was truncated, and rollout.mask_truncated leaves such out of the loss"
    if rates <= {0.0} or rates <= {1.0}:
        return f"{'every' if rates == {1.0} else 'no'} episode was solved, so that no group had rewards to compare"
    return "every advantage was zero, as where in each group all episodes are solved or none is"


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


def _sorted(samples: Iterable[Sample | Record], reward_key: str | None) -> tuple[list[Segments], list[Segments]]:
    """All episodes, and those that infrastructure did not break."""
    records = [sample if isinstance(sample, Record) else record_of(sample, reward_key) for sample in samples]
    episodes = trajectories(records)
    return episodes, [segments for segments in episodes if not any(segment.broken for segment in segments)]


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure, over the rows that have it."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


def _outcomes(sound: Sequence[Segments]) -> dict[str, float]:
    """Of a component, the mean is over the episodes whose score names it."""
    return _means(
        {
            "solve_rate": first.solved,
            "reward": first.reward or 0.0,
            **{f"reward/{name}": value for name, value in (first.score.components if first.score else {}).items()},
        }
        for first, *_ in sound
    )


def _retries(reports: Iterable[EpisodeRecord]) -> dict[str, float]:
    found = Counter[str]()
    for counters in (report.counters for report in reports):
        found.update({f"engine_retries/{cause}": count for cause, count in counters.engine_retries.items()})
        found.update({f"broken_attempts/{reason}": count for reason, count in counters.broken_attempts.items()})
    return {name: float(count) for name, count in sorted(found.items())}


def _sizes(segments: Segments) -> dict[str, float]:
    return {
        "sampled_tokens": sum(sum(record.loss_mask or ()) for record in segments),
        "context_tokens": sum(len(record.tokens) for record in segments),
        "segments": len(segments),
    }


def _conduct(report: EpisodeRecord) -> dict[str, float]:
    """What the agent did and where the time went."""
    timings, counters = report.timings, report.counters
    return {
        "turns": report.turns,
        "seconds": timings.total,
        "engine_seconds": timings.engine,
        "sandbox_seconds": timings.sandbox,
        **{name: getattr(counters, name) for name in _COUNTERS},
        "masked": float(report.masked),
        "test_runs": counters.tool_calls.get("run_tests", 0),
        **{f"stop/{r.value}": float(report.stop_reason == r) for r in StopReason if not r.is_infrastructure},
    }


def _behaviour(sound: Sequence[Segments]) -> dict[str, Any]:
    """Mean turns and edits and the share of each stop reason; absent where the generate hook does not report them."""
    reports = _reports(sound)
    means = _means({"turns": report.turns, "edits": report.counters.edits} for report in reports)
    reasons = Counter(report.stop_reason for report in reports)
    shares = {name: count / len(reports) for name, count in sorted(reasons.items())}
    return {**means, "stop_reasons": shares} if reports else {}


def _first_edit(sound: Sequence[Segments]) -> dict[str, float]:
    """How often the first applied edit alone solved the task; absent where the reward hook does not grade it."""
    known = [score.first_edit_solved for segments in sound if (score := segments[0].score)]
    return _means({"first_edit_solve_rate": solved} for solved in known if solved is not None)


def _reports(sound: Sequence[Segments]) -> list[EpisodeRecord]:
    return [segments[0].episode for segments in sound if segments[0].episode]
