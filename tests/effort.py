"""What a computation costs, as ratios of processor times that are taken in one run: they hold on a processor of any
speed, beside whatever else runs. Figures in seconds are the benchmarks' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 8  # the larger input is so many times the smaller
WIDE = 4  # how many times a linear computation's own growth is let pass; of a square's growth it is half
TRIES = 5
ROUNDS = 1_000_000
GRAIN = 0.002  # seconds: shorter ones are taken for this long, since the clock and the caches blur them


def processor_seconds(work: Callable[[], object]) -> float:
    """What the thread that calls this works for `work`; neither other threads nor waiting are in it."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def yardstick() -> float:
    """Seconds that this thread works for a fixed loop of plain Python: 0.02 on a fast processor."""
    return min(processor_seconds(_rounds) for _ in range(3))


def _rounds() -> None:
    total = 0
    for number in range(ROUNDS):
        total += number & 7


def assert_linear(work: Callable[[int], object], size: int, what: object = "") -> None:
    """Fails where `work(8 * size)` takes more than 32 times as long as `work(size)`, in each of five tries.

    A linear computation takes 8 times as long, a square one 64 times. `size` should be such that `work(size)` takes
    some milliseconds: of what takes less than two, only what grows beyond 64 is found.
    """
    short = max(GRAIN, min(processor_seconds(lambda: work(size)) for _ in range(3)))
    seen: list[float] = []
    while len(seen) < TRIES:
        seen.append(processor_seconds(lambda: work(FACTOR * size)) / short)
        if seen[-1] <= FACTOR * WIDE:
            return
    raise AssertionError(f"{what}: {FACTOR} times the input takes {min(seen):.0f} times as long")
