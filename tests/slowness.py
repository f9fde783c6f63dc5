"""How slow this processor is: limits on the seconds that a computation takes are of a fast one, and grow with it."""

from __future__ import annotations

import time
from functools import cache

ROUNDS = 300_000
FAST = 0.007  # seconds of `_count`; a virtual processor of a cloud takes two to three times as long


@cache
def slowness() -> float:
    """1 for a fast processor, 2 for one that takes twice as long: what a limit is multiplied with."""
    return max(1.0, min(_count() for _ in range(5)) / FAST)


def _count() -> float:
    started, total = time.thread_time(), 0
    for number in range(ROUNDS):
        total += number & 7
    return time.thread_time() - started
