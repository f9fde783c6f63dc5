"""`Admission`: how many episodes play at once, by what the engines keep of them in their KV caches.

A turn's prompt begins with that of the turn before. What the engine has no longer of that, it computes again.
Episodes that wait for their sandboxes are the first whose prefix it drops for another's, so that with too many at once
each turn costs a whole episode's tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil

LEAST_SHARE = 0.5  # of those at the start: an episode is no longer than twice the mean length that is assumed
TOO_MANY, ROOM = 0.15, 0.05  # of the tokens that engines had of a prompt before: lost, from and up to which
WINDOW = 0.25  # of the limit: so many episodes end from one look to the next


@dataclass(frozen=True)
class Bounds:
    """Episodes at once, of all engines together: at the start, and the least and the most that it may become."""

    least: int
    start: int
    most: int

    @property
    def adapts(self) -> bool:
        return self.least < self.most


def bounds(an_engine: int, cached: float, engines: int) -> Bounds:
    """an_engine: episodes of one engine, at most. cached: those of mean length that its cache holds; 0 where that is
    not known: then they are as many as they may be, and stay that."""
    most = an_engine * engines
    if not cached:
        return Bounds(most, most, most)
    start = min(most, max(1, int(cached * engines)))
    return Bounds(ceil(start * LEAST_SHARE), start, most)


@dataclass
class Admission:
    """Begins with as many as the caches hold by the plan. Of the episodes that end, those of a `WINDOW` say how many
    tokens the engines had of their earlier prompts, and lost: where it is more than `TOO_MANY` of them, the limit
    shrinks, and where hardly any, and all were in use, it grows (`Limit`). One that was played beside more than the
    limit now allows says nothing of it, so that the limit shrinks again only once it has had an effect.

    A function of what the episodes report, in the order in which they end. Weights that change empty the caches: what
    is lost by that does not count.

    Not covered: prefixes that are lost for another reason, such as a router that sends an episode's turns to different
    engines. By them the limit shrinks too, to its least.
    """

    bounds: Bounds
    _limit: Limit = field(init=False)
    _ended: int = 0
    _known: int = 0
    _lost: int = 0
    _most_in_use: int = 0

    def __post_init__(self) -> None:
        self._limit = Limit(self.bounds.least, self.bounds.most, self.bounds.start)

    @property
    def limit(self) -> int:
        return self._limit.limit

    def end(self, *, in_use: int, known: int, lost: int) -> float:
        """An episode has ended. in_use: episodes that were played at once while it was, at most, itself included.
        known: tokens that engines had of its earlier prompts, over all turns; lost: those of them that were computed
        again. Returns the share that was lost, where the limit was looked at; else 0.
        """
        if not self.bounds.adapts or in_use > self.limit:
            return 0.0
        self._ended += 1
        self._known += known
        self._lost += lost
        self._most_in_use = max(self._most_in_use, in_use)
        if self._ended < max(1, int(self.limit * WINDOW)):
            return 0.0
        known, share, most_in_use = self._known, self._lost / max(1, self._known), self._most_in_use
        self._ended = self._known = self._lost = self._most_in_use = 0
        if known and share > TOO_MANY:
            self._limit.shrink(most_in_use)
        elif known and share <= ROOM:
            self._limit.grow(most_in_use)
        return share


# `Limit`: how many there may be at once, found by trying. `Concurrency`: of the sandboxes that a machine bears.
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
