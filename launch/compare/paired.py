"""The outcomes of two sides, paired by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
        """Unbiased estimate of each rate's variance by chance, p (1 - p) / (n - 1); NaN for a single episode."""
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
        """Of each task: rate of B less rate of A. Shape T."""
        return self.b.rates - self.a.rates

    @property
    def difference(self) -> float:
        """The mean over tasks, each with the same weight whatever its number of episodes."""
        return float(self.differences.mean())

    @property
    def single(self) -> bool:
        """Whether each side has one episode of each task."""
        return bool(self.a.episodes.max() == 1 == self.b.episodes.max())


def pair(a: Outcomes, b: Outcomes, repositories: Mapping[str, str] | None = None) -> Paired:
    """The tasks that both have episodes of, in order of A. repositories: of each of them, or None."""
    tasks = tuple(task for task in a if a[task] and b.get(task))
    codes = None
    if repositories is not None:
        codes = np.unique([repositories[task] for task in tasks], return_inverse=True)[1]
    return Paired(tasks, _side(a, tasks), _side(b, tasks), codes)


def _side(outcomes: Outcomes, tasks: Sequence[str]) -> Side:
    solved = np.array([sum(outcomes[task]) for task in tasks], dtype=float)
    return Side(solved, np.array([len(outcomes[task]) for task in tasks], dtype=float))
