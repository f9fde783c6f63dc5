"""The comparison of two sides on one set of tasks, as one document: what `slime-swe compare --json` prints of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.compare.intervals import Interval, Refused, intervals
from slime_swe.launch.compare.paired import Paired, Side, pair
from slime_swe.launch.compare.repositories import repositories_of
from slime_swe.launch.compare.sources import Repeated
from slime_swe.launch.compare.verdict import power, test_of, verdict, verdict_of
from slime_swe.rollout.metrics import wilson_interval


def compare(name: str, a: Repeated, b: Repeated) -> dict[str, Any]:
    """Differences, rates and limits are shares from -1 to 1, not points. Raises `UserError` without a common task."""
    left, right = a.outcomes, b.outcomes
    common = [task for task in left if task in right]
    if not common:
        raise UserError(f"A and B have no task of {name} in common: {_first(left)}; {_first(right)}")
    places = [(e.folder, e.name) for e in (*a.evaluations, *b.evaluations) if e.folder is not None]
    repositories, unknown = repositories_of(common, dict.fromkeys(places))
    paired = pair(left, right, repositories)
    found = intervals(paired, unknown)
    test = test_of(paired)
    return {
        "difference": paired.difference,
        "intervals": {question: _interval(interval) for question, interval in found.items()},
        "p_value": test.p_value,
        "test": test.name,
        "verdict": verdict(paired.difference, test.p_value),
        "power": power(paired, found),
        **_counts(paired, repositories),
        "a": _side(paired.a, a),
        "b": _side(paired.b, b),
        "left_out": {"a": [task for task in left if task not in right], "b": [t for t in right if t not in left]},
    }


def _counts(paired: Paired, repositories: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "tasks": len(paired.tasks),
        "repositories": None if repositories is None else len(set(repositories.values())),
        "gained": int((paired.differences > 0).sum()),
        "lost": int((paired.differences < 0).sum()),
    }


def _interval(found: Interval | Refused) -> dict[str, Any]:
    if isinstance(found, Refused):
        return {"refused": found.reason}
    return {
        "low": found.low,
        "high": found.high,
        "standard_error": found.estimate.error,
        "degrees_of_freedom": found.estimate.degrees,
        "verdict": verdict_of(found),
    }


def _side(side: Side, given: Repeated) -> dict[str, Any]:
    """Of the paired tasks. The interval is Wilson's, with the tasks as trials."""
    rate, tasks = float(side.rates.mean()), len(side.rates)
    return {
        "evaluations": [
            {"source": e.source, "set": e.name, "rollout": e.rollout, **(e.limits or {})} for e in given.evaluations
        ],
        "solve_rate": rate,
        "interval": list(wilson_interval(rate * tasks, tasks)),
        "episodes": int(side.episodes.sum()),
        "broken": given.broken,
    }


def _first(tasks: Mapping[str, Sequence[int]]) -> str:
    return f"{next(iter(tasks))}, ..." if tasks else "none"
