"""`Admission`: how many episodes play at once, by what the engines keep of them in their KV caches.

A turn's prompt begins with that of the turn before. What the engine has no longer of that, it computes again.
Episodes that wait for their sandboxes are the first whose prefix it drops for another's, so that with too many at once
each turn costs a whole episode's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from slime_swe.limit import Limit

LEAST_SHARE = 0.5  # of those at the start: an episode is no longer than twice the mean length that is assumed
TOO_MANY, ROOM = 0.15, 0.05  # of the tokens that engines had of a prompt before: lost, from and up to which
WINDOW = 0.25  # of the limit: so many episodes end from one look to the next


@dataclass(frozen=True)
class Bounds:
    """The limit on episodes at once, of all engines together: at the start, its least and its most."""

    least: int
    start: int
    most: int

    @property
    def adapts(self) -> bool:
        return self.least < self.most


def bounds(an_engine: int, cached: float, engines: int) -> Bounds:
    """Return the bounds for a run. an_engine: episodes of one engine, at most. cached: those of mean length that its
    cache holds; 0 where that is not known: then all three are the most."""
    most = an_engine * engines
    if not cached:
        return Bounds(most, most, most)
    start = min(most, max(1, int(cached * engines)))
    return Bounds(ceil(start * LEAST_SHARE), start, most)


@dataclass
class Admission:
    """Adapts how many episodes play at once. It begins with as many as the caches hold by the plan. Of the episodes
    that end, those of a `WINDOW` say how many tokens the engines had of their earlier prompts, and lost: where it is
    more than `TOO_MANY` of them, the limit shrinks, and where hardly any, and all were in use, it grows (`Limit`). One
    that was played beside more than the limit now allows says nothing of it, so that the limit shrinks again only once
    it has had an effect.

    The limit is a function of what the episodes report, in the order in which they end. Weights that change empty the
    caches: what is lost by that does not count.

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
        """Count an episode that has ended. in_use: episodes that were played at once while it was, at most, itself
        included. known: tokens that engines had of its earlier prompts, over all turns; lost: those of them that were
        computed again. Returns the share that was lost, where the limit was looked at; else 0.
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
