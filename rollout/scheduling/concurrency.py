"""`Concurrency`: how many sandboxes a machine bears, found by trying."""

from __future__ import annotations

from dataclasses import dataclass

SHRINK = 0.8
HIGH = 0.1  # of the time, that a process waits for CPU or memory (`some avg10` of Linux's /proc/pressure)


@dataclass
class Concurrency:
    """Begins with `least` and doubles until the machine bears no more. Then it grows step by step as long as all are in
    use, and shrinks by a fifth when they are too many, as TCP's congestion window does (RFC 5681). At most `most`.

    slow_opening: how many times longer than at its best a sandbox may take to open.
    """

    least: int
    most: int
    slow_opening: float = 4.0
    _trying: bool = True
    _best_opening: float = float("inf")

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least is {self.least} and most is {self.most}: give 1 <= least <= most")
        self.limit = self.least

    def observe(self, *, in_use: int, cpu_pressure: float, memory_pressure: float, opening: float | None) -> int:
        """The new limit. Pressures: share of the time that some process had to wait. opening: seconds, if one did."""
        if opening is not None:
            self._best_opening = min(self._best_opening, opening)
        slow = opening is not None and opening > self.slow_opening * self._best_opening
        if memory_pressure > HIGH or (cpu_pressure > HIGH and slow):
            self.limit = max(self.least, int(self.limit * SHRINK))
            self._trying = False
        elif in_use >= self.limit:
            step = self.limit if self._trying else max(1, self.limit // 16)
            self.limit = min(self.most, self.limit + step)
        return self.limit
