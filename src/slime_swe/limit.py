"""`Limit`: how many of something there may be at once, found by trying."""

from __future__ import annotations

from dataclasses import dataclass

SHRINK = 0.8
GROW = 1 / 16  # of the limit, with each observation


@dataclass
class Limit:
    """A limit between `least` and `most`. It shrinks by a fifth where there are too many, and grows step by step as
    long as all are in use, as TCP's congestion window does (RFC 5681)."""

    least: int
    most: int
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.limit <= self.most:
            raise ValueError(
                f"least is {self.least}, the limit {self.limit} and most {self.most}: give 1 <= least <= limit <= most"
            )

    def shrink(self, in_use: int) -> None:
        """Lower the limit, but not again before so few are in use, since until then it has had no effect."""
        if in_use <= self.limit:
            self.limit = max(self.least, int(in_use * SHRINK))

    def grow(self, in_use: int) -> None:
        if in_use >= self.limit:
            self.limit = min(self.most, self.limit + max(1, int(self.limit * GROW)))
