"""From the means that the planner assumes to the parameters of `simulation.workload.Assumed`. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from slime_swe.recipes.forecast import informative_share


def capped_mean(mean: float, spread: float, most: float) -> float:
    """Of a log-normal variable, with what is above `most` set to `most`. mean: without that. spread: the logarithm's
    standard deviation."""
    middle, normal = math.log(mean) - spread**2 / 2, NormalDist()
    below = (math.log(most) - middle) / spread
    return mean * normal.cdf(below - spread) + most * (1 - normal.cdf(below))


def mean_before_cap(capped: float, spread: float, most: float) -> float:
    """The inverse of `capped_mean` in its first argument; of a mean that comes too near to `most`, of 0.95 of that."""
    capped = min(capped, 0.95 * most)
    return _where(lambda mean: capped_mean(mean, spread, most), capped, capped, 1e3 * most)


def certainty_of(informative: float, solved: float, size: int) -> float:
    """`Assumed.certainty`, at which that share of the groups of `size` episodes is informative."""
    return _where(lambda certainty: informative_share(solved, certainty, size), informative, 1e-4, 1e4)


def _where(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """The argument at which a rising function has that value; an end of the range where it has it nowhere."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high
