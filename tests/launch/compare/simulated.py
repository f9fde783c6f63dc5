"""Comparisons that are drawn from a known truth, on the repositories of SWE-bench Verified.

The log-odds of a task under A are m + b_g + 2 N(0, 1), and B adds d + a_g + N(0, 1) / 2, where b_g and a_g are those of
its repository. What intervals are to cover is computed from these, by Gauss-Hermite quadrature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from slime_swe.launch.compare.intervals import Paired, Side

VERIFIED = {
    "django": 231, "sympy": 75, "sphinx": 44, "matplotlib": 34, "scikit-learn": 32, "astropy": 22, "xarray": 22,
    "pytest": 19, "pylint": 10, "requests": 8, "seaborn": 2, "flask": 1,
}  # fmt: skip
SIZES = np.array(list(VERIFIED.values()))
TASKS, REPOSITORIES = int(SIZES.sum()), len(SIZES)
CODES = np.repeat(np.arange(REPOSITORIES), SIZES)
WEIGHTS = SIZES / TASKS
NAMES = tuple(map(str, range(TASKS)))
TASK, CHANGE = 2.0, 0.5  # deviations between tasks, in log-odds
POINTS, MASSES = np.polynomial.hermite_e.hermegauss(60)
MASSES = MASSES / MASSES.sum()


@dataclass(frozen=True)
class World:
    """repository: deviation of repositories' log-odds; effect: of what B adds to them; shift: d; level: m."""

    repository: float = 0.0
    effect: float = 0.0
    shift: float = 0.5
    level: float = -0.5

    @property
    def population(self) -> float:
        """The expected difference on tasks of other repositories."""
        before = rate(np.array(self.level), np.hypot(TASK, self.repository))
        deviation = np.sqrt(TASK**2 + CHANGE**2 + self.repository**2 + self.effect**2)
        return float(rate(np.array(self.level + self.shift), deviation) - before)


@dataclass(frozen=True)
class Drawn:
    paired: Paired
    these_tasks: float  # the truths
    other_tasks: float
    other_repositories: float


def rate(centre: np.ndarray, deviation: float) -> np.ndarray:
    """The mean solve rate of log-odds that are normal around `centre`."""
    return expit(centre[..., None] + deviation * POINTS) @ MASSES


def draw(world: World, episodes: int, count: int, seed: int, *, null: bool = False) -> Iterator[Drawn]:
    """`count` comparisons. null: shifted so that tasks of the repositories that were drawn have no difference."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        own = world.level + world.repository * rng.standard_normal(REPOSITORIES)
        effect = world.effect * rng.standard_normal(REPOSITORIES)
        shift = without_difference(own, effect) if null else world.shift
        before = own[CODES] + TASK * rng.standard_normal(TASKS)
        after = before + shift + effect[CODES] + CHANGE * rng.standard_normal(TASKS)
        rates = expit(before), expit(after)
        sides = (Side(rng.binomial(episodes, p).astype(float), np.full(TASKS, float(episodes))) for p in rates)
        yield Drawn(
            Paired(NAMES, *sides, CODES),
            float((rates[1] - rates[0]).mean()),
            expected(own, effect, shift),
            world.population,
        )


def expected(own: np.ndarray, effect: np.ndarray, shift: float) -> float:
    """The expected difference on other tasks of these repositories, each with its share of the tasks."""
    after = rate(own + effect + shift, np.hypot(TASK, CHANGE))
    return float(WEIGHTS @ (after - rate(own, TASK)))


def without_difference(own: np.ndarray, effect: np.ndarray) -> float:
    """The shift with which that is 0, by Newton's method."""
    shift = 0.0
    for _ in range(6):
        slope = (expected(own, effect, shift + 1e-4) - expected(own, effect, shift - 1e-4)) / 2e-4
        shift -= expected(own, effect, shift) / slope
    return shift
