"""Three 95 % intervals of a difference that is paired by task. Each answers another question (arXiv 2512.21326).

`these tasks`                        how would new episodes of the same tasks differ: the chance of sampling alone
`other tasks of these repositories`  ... of other tasks, drawn from the same repositories
`other repositories`                 ... of tasks of repositories that nobody has looked at
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from slime_swe.rollout.metrics import wilson_interval

LEVEL = 0.95
MOST_DEGREES = 1e6  # from here on Student's t is the normal distribution


@dataclass(frozen=True)
class Estimate:
    """An error (standard deviation) of the difference, and the degrees of freedom with which it is known."""

    difference: float
    error: float
    degrees: float

    @property
    def quantile(self) -> float:
        """The two-sided quantile of Student's t at `LEVEL`."""
        return student(0.5 + LEVEL / 2, self.degrees)

    @property
    def p_value(self) -> float:
        """The two-sided p value of no difference. The error must not be 0."""
        return float(2 * stdtr(self.degrees, -abs(self.difference / self.error)))


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    estimate: Estimate


@dataclass(frozen=True)
class Refused:
    """The reason why there is no such interval."""

    reason: str


def intervals_of(paired: Paired, unknown: str = "") -> dict[str, Interval | Refused]:
    """Return the three intervals by name. unknown: why the tasks' repositories are not known, where they are not."""
    return {
        "these tasks": these_tasks(paired),
        "other tasks of these repositories": other_tasks(paired),
        "other repositories": other_repositories(paired, unknown),
    }


def these_tasks(paired: Paired) -> Interval | Refused:
    """Estimate the interval where the tasks are given and only episodes vary.

    The variances of all rates add up, over T squared. The degrees of freedom are Welch's and Satterthwaite's. Without
    any variation the interval comes from Wilson's limits of both sides' episodes.
    """
    short = int(((paired.a.episodes < 2) | (paired.b.episodes < 2)).sum())
    if short:
        which = "no task has" if short == len(paired.tasks) else f"{short} of {len(paired.tasks)} tasks have not"
        return Refused(f"{which} two episodes on both sides: evaluate with --samples 2, or give several evaluations")
    variances = np.concatenate([paired.a.error_variances, paired.b.error_variances]) / len(paired.tasks) ** 2
    degrees = np.concatenate([paired.a.episodes, paired.b.episodes]) - 1
    estimate = estimate_of(paired.difference, variances, degrees)
    return _student(estimate) if estimate.error else _constant_episodes(paired, estimate)


def other_tasks(paired: Paired) -> Interval | Refused:
    """Estimate the interval where tasks are drawn anew from each repository, as many as there are.

    The variance is that of a stratified mean, sum_g (N_g / N)^2 s_g^2 / N_g, with s_g^2 that of the differences in
    repository g (Cochran 1977, 5.3).

    Repositories with a single task make up one stratum, with the smallest other one where there is but one of them
    (Cochran 1977, 5A.12). Where repositories are not known, all tasks are one stratum.
    """
    total = len(paired.tasks)
    if total < 2:
        return Refused("one task is no sample of tasks")
    strata = strata_of(paired)
    counts = np.bincount(strata).astype(float)
    means = np.bincount(strata, paired.differences) / counts
    squares = np.bincount(strata, (paired.differences - means[strata]) ** 2)
    estimate = estimate_of(paired.difference, counts * squares / (counts - 1) / total**2, counts - 1)
    return _student(estimate) if estimate.error else _constant(estimate, paired.differences, total)


def other_repositories(paired: Paired, unknown: str = "") -> Interval | Refused:
    """Estimate the interval where repositories are drawn anew, with their tasks.

    It is the cluster jackknife (CV3) with Student's t on the effective number of clusters less one.

    CV3 = (G - 1) / G sum_g (d_(g) - d)^2, where d_(g) is the mean difference without repository g (MacKinnon, Nielsen
    and Webb 2023, Cluster-robust inference: a guide to empirical practice, Journal of Econometrics 232). The usual CV1
    covers too seldom where one repository has half of the tasks.
    """
    if paired.repositories is None:
        return Refused(unknown or "the repositories of the tasks are not known")
    counts = np.bincount(paired.repositories).astype(float)
    total, clusters, effective = counts.sum(), len(counts), effective_clusters(counts)
    if effective < 2:
        many = f"{clusters} repositories, in effect {effective:.1f}" if clusters > 1 else "one repository"
        return Refused(f"the tasks are of {many}, which says nothing of others")
    means = np.bincount(paired.repositories, paired.differences) / counts
    moved = counts / (total - counts) * (paired.difference - means)
    error = math.sqrt((clusters - 1) / clusters * float(moved @ moved))
    estimate = Estimate(paired.difference, error if error > 1e-12 else 0.0, effective - 1)
    return _student(estimate) if estimate.error else _constant(estimate, means, effective)


def effective_clusters(counts: Floats) -> float:
    """Return G* = G / (1 + Gamma), the effective number of clusters of sizes N_g (Carter, Schnepel and Steigerwald
    2017, Asymptotic behavior of a t-test robust to cluster heterogeneity, Review of Economics and Statistics 99,
    698-709).

    Gamma = 1/G sum_g ((gamma_g - mean gamma) / mean gamma)^2, gamma_g = e' (X'X)^-1 X_g' Omega_g X_g (X'X)^-1 e. For a
    mean (X = 1) and tasks that vary alone within their repository (Omega_g = 1) gamma_g = N_g / N^2, so that
    G* = (sum N_g)^2 / sum N_g^2. It is the most that there can be: the more alike a repository's tasks are, the fewer.
    """
    gamma = counts / counts.sum() ** 2
    heterogeneity = float((((gamma - gamma.mean()) / gamma.mean()) ** 2).mean())
    return len(counts) / (1 + heterogeneity)


def strata_of(paired: Paired) -> np.ndarray:
    """Number the tasks' strata from 0 without gaps, each of two tasks or more. Shape T."""
    if paired.repositories is None:
        return np.zeros(len(paired.tasks), dtype=np.intp)
    counts = np.bincount(paired.repositories)
    merged = counts == 1
    if merged.sum() == 1:
        merged[np.argmin(np.where(merged, len(paired.tasks), counts))] = True
    stratum = np.where(merged, len(counts), np.arange(len(counts)))
    return np.unique(stratum[paired.repositories], return_inverse=True)[1]


def estimate_of(difference: float, variances: Floats, degrees: Floats) -> Estimate:
    """Add up independent variances, each known with its own degrees of freedom (Satterthwaite 1946)."""
    total, squares = float(variances.sum()), float((variances**2 / degrees).sum())
    if total < 1e-24:  # but for rounding, nothing varies
        return Estimate(difference, 0.0, MOST_DEGREES)
    return Estimate(difference, math.sqrt(total), min(total**2 / squares, MOST_DEGREES))


def student(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    return float(stdtrit(degrees, probability))


def _student(estimate: Estimate) -> Interval:
    half = estimate.quantile * estimate.error
    return Interval(max(-1.0, estimate.difference - half), min(1.0, estimate.difference + half), estimate)


def _constant(estimate: Estimate, seen: Floats, count: float) -> Interval:
    """Bound the difference where the units seen do not differ.

    The share of other units that do is 0 of `count`, at most Wilson's upper limit; such a unit lies anywhere from -1
    to 1, instead of where these do (`seen`).
    """
    share = wilson_interval(0, count, estimate.quantile)[1]
    low = estimate.difference - share * (1 + float(seen.max()))
    return Interval(max(-1.0, low), min(1.0, estimate.difference + share * (1 - float(seen.min()))), estimate)


def _constant_episodes(paired: Paired, estimate: Estimate) -> Interval:
    """Combine the limits of both rates where each task's episodes agree, as where all are solved or none.

    The method is Newcombe's (1998, Interval estimation for the difference between independent proportions, method 10).
    """
    (low_a, high_a), (low_b, high_b) = (_rate_limits(side, estimate.quantile) for side in (paired.a, paired.b))
    rate_a, rate_b = float(paired.a.rates.mean()), float(paired.b.rates.mean())
    low = estimate.difference - math.hypot(rate_b - low_b, high_a - rate_a)
    return Interval(
        max(-1.0, low), min(1.0, estimate.difference + math.hypot(high_b - rate_b, rate_a - low_a)), estimate
    )


def _rate_limits(side: Side, quantile: float) -> tuple[float, float]:
    """Return the limits of the rate on these tasks; they are Wilson's where all episodes are solved or none."""
    rate, share = float(side.rates.mean()), wilson_interval(0, float(side.episodes.sum()), quantile)[1]
    return rate * (1 - share), rate + share * (1 - rate)


# The outcomes of two sides, paired by task.
Outcomes = Mapping[str, Sequence[int]]  # task -> 1 for each episode that solved it, 0 for each other
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """One side's episodes of the paired tasks: how many solved each task (shape T), and of how many."""

    solved: Floats
    episodes: Floats

    @cached_property
    def rates(self) -> Floats:
        return self.solved / self.episodes

    @cached_property
    def error_variances(self) -> Floats:
        """The unbiased estimate of each rate's variance by chance, p (1 - p) / (n - 1); NaN for a single episode."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.episodes > 1, self.rates * (1 - self.rates) / (self.episodes - 1), np.nan)


@dataclass(frozen=True)
class Paired:
    """T tasks that both sides have played. repositories: the number of each task's repository, 0 .. G - 1, or None
    where that is not known."""

    tasks: tuple[str, ...]
    a: Side
    b: Side
    repositories: NDArray[np.intp] | None = None

    @cached_property
    def differences(self) -> Floats:
        """The rate of B less the rate of A, for each task. Shape T."""
        return self.b.rates - self.a.rates

    @property
    def difference(self) -> float:
        """The mean over tasks, each with the same weight whatever its number of episodes."""
        return float(self.differences.mean())

    @property
    def single(self) -> bool:
        """True where each side has one episode of each task."""
        return bool(self.a.episodes.max() == 1 == self.b.episodes.max())


def pair(a: Outcomes, b: Outcomes, repositories: Mapping[str, str] | None = None) -> Paired:
    """Pair the tasks that both sides have episodes of, in the order of A. repositories: that of each task, or None."""
    tasks = tuple(task for task in a if a[task] and b.get(task))
    codes = None
    if repositories is not None:
        codes = np.unique([repositories[task] for task in tasks], return_inverse=True)[1]
    return Paired(tasks, _side(a, tasks), _side(b, tasks), codes)


def _side(outcomes: Outcomes, tasks: Sequence[str]) -> Side:
    solved = np.array([sum(outcomes[task]) for task in tasks], dtype=float)
    return Side(solved, np.array([len(outcomes[task]) for task in tasks], dtype=float))
