"""Is a paired difference real: its p value, and how small a difference such an evaluation can show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slime_swe.launch.compare.intervals import Interval, Refused, other_tasks, student
from slime_swe.launch.compare.paired import Paired, Side
from slime_swe.rollout.metrics import sign_test

ALPHA, POWER = 0.05, 0.8  # two-sided size of the tests, and the power that is asked for
DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.1)  # of the table of runs


@dataclass(frozen=True)
class Test:
    __test__ = False  # no test of pytest's
    name: str
    p_value: float


def test_of(paired: Paired) -> Test:
    """Two-sided, of no difference on tasks of these repositories.

    One episode on both sides: McNemar's exact test of the tasks that one side alone solves (McNemar 1947). More: the
    t test of the tasks' differences, stratified like the interval `other tasks of these repositories`; the exact sign
    test, which is McNemar's for more episodes, where its error is 0.
    """
    gained, lost = int((paired.differences > 0).sum()), int((paired.differences < 0).sum())
    if paired.single:
        return Test("exact McNemar", sign_test(gained, lost))
    found = other_tasks(paired)
    if isinstance(found, Refused) or not found.estimate.error:
        return Test("exact sign test", sign_test(gained, lost))
    return Test("paired t test", found.estimate.p_value)


def verdict(difference: float, p_value: float) -> str:
    if p_value >= ALPHA or not difference:
        return "not resolved"
    return "better" if difference > 0 else "worse"


def verdict_of(interval: Interval) -> str:
    """Of one question alone: whether its interval holds 0."""
    return "better" if interval.low > 0 else "worse" if interval.high < 0 else "not resolved"


def detectable(interval: Interval | Refused) -> float | None:
    """The difference that such an evaluation resolves with 80 % power: (t_0.975 + t_0.8) errors.

    None where nothing varied, which does not say how much there is to vary, or where the interval is refused.
    """
    if isinstance(interval, Refused) or not interval.estimate.error:
        return None
    found = interval.estimate
    return (found.quantile + student(POWER, found.degrees)) * found.error


def runs_each(difference: float, deviation: float) -> int:
    """Runs of each side that resolve a difference on these tasks: n = 2 (z_0.975 + z_0.8)^2 deviation^2 / difference^2.

    deviation: of one run's solve rate from run to run, taken as known; in the unit of `difference`. Such tables, and
    deviations of 1.5 points and more on SWE-bench Verified, are in arXiv 2602.07150.
    """
    z = student(1 - ALPHA / 2, 1e9) + student(POWER, 1e9)
    return max(1, math.ceil(round(2 * (z * deviation / difference) ** 2, 9)))


def run_deviation(side: Side) -> tuple[float, bool]:
    """The standard deviation of a run's solve rate, a run being one episode of each task; whether it was measured.

    It is measured where every task has two episodes. Else this is the most that it can be, sqrt(p (1 - p) / T), as if
    all tasks were alike.
    """
    count = len(side.rates)
    if side.episodes.min() < 2:
        rate = float(side.rates.mean())
        return math.sqrt(rate * (1 - rate) / count), False
    return math.sqrt(float((side.error_variances * side.episodes).sum())) / count, True


def power(paired: Paired, intervals: Mapping[str, Interval | Refused]) -> dict[str, object]:
    """What this evaluation can show, and what others could; differences and deviations are shares, not points."""
    deviations = {"a": run_deviation(paired.a), "b": run_deviation(paired.b)}
    typical = math.sqrt(float(np.mean([deviation**2 for deviation, _ in deviations.values()])))
    return {
        "power": POWER,
        "detectable": {
            name: detectable(intervals[name]) for name in ("these tasks", "other tasks of these repositories")
        },
        "run_deviation": {name: deviation for name, (deviation, _) in deviations.items()} | {"typical": typical},
        "run_deviation_measured": all(measured for _, measured in deviations.values()),
        "runs_each": [
            {"difference": difference, "runs": runs_each(difference, typical) if typical else None}
            for difference in DIFFERENCES
        ],
    }
