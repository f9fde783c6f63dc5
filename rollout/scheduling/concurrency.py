"""`Limit`: how many there may be at once, found by trying. `Concurrency`: of the sandboxes that a machine bears."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

SHRINK = 0.8
GROW = 1 / 16  # of the limit, with each observation
HIGH_CPU, HIGH_MEMORY = 0.5, 0.1  # of the time, that some process waits (`some avg10` of Linux's /proc/pressure)
SLOW, SLOW_SECONDS = 4.0, 0.25  # an opening is slow if it takes more than both: times the quickest of its kind; seconds


@dataclass
class Limit:
    """Between `least` and `most`. It shrinks by a fifth where there are too many, and grows step by step as long as all
    are in use, as TCP's congestion window does (RFC 5681)."""

    least: int
    most: int
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.limit <= self.most:
            raise ValueError(
                f"least is {self.least}, the limit {self.limit} and most {self.most}: give 1 <= least <= limit <= most"
            )

    def shrink(self, in_use: int) -> None:
        """Not again before so few are in use, since until then it has had no effect."""
        if in_use <= self.limit:
            self.limit = max(self.least, int(in_use * SHRINK))

    def grow(self, in_use: int) -> None:
        if in_use >= self.limit:
            self.limit = min(self.most, self.limit + max(1, int(self.limit * GROW)))


@dataclass
class Concurrency:
    """Begins with `most`, at least `least`; `limit` is a `Limit`.

    They are too many if memory is short, or if processors are and most sandboxes open slowly: busy processors alone are
    what a run wants, so while they are busy, it takes some that open quickly for the limit to grow.
    """

    least: int
    most: int
    _limit: Limit = field(init=False)
    _quickest: dict[Hashable, float] = field(default_factory=dict)
    _slow: list[bool] = field(default_factory=list)  # of the openings since the last observation

    def __post_init__(self) -> None:
        self._limit = Limit(self.least, self.most, self.most)

    @property
    def limit(self) -> int:
        return self._limit.limit

    def opened(self, kind: Hashable, seconds: float) -> None:
        """A sandbox has opened. kind: what it has in common with those that open as quickly, such as its image."""
        quickest = self._quickest[kind] = min(seconds, self._quickest.get(kind, seconds))
        self._slow.append(seconds > max(SLOW_SECONDS, SLOW * quickest))

    def observe(self, *, in_use: int, cpu_pressure: float, memory_pressure: float) -> int:
        """The new limit. in_use: the most since the last observation. Pressures: share of the time that some process
        had to wait.
        """
        some_opened, most_slow = bool(self._slow), 2 * sum(self._slow) > len(self._slow)
        self._slow.clear()
        is_busy = cpu_pressure > HIGH_CPU
        if memory_pressure > HIGH_MEMORY or (is_busy and most_slow):
            self._limit.shrink(in_use)
        elif some_opened or not is_busy:
            self._limit.grow(in_use)
        return self.limit
