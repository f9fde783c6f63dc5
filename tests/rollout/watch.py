"""What an event loop, or another thread, is kept from by the work of others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.slowness import slowness

HELD = 0.05 * slowness()  # seconds: the most that anything may keep a loop
_PAGE = 4096
_TICK = 0.002
_TRIES = 5


class Watch:
    """busy: the longest time in seconds that the loop's thread worked without a break; what other threads do, and a
    busy machine, are not in it. late: the longest time by which the loop was late, whatever the reason. rss: bytes that
    this process had in memory at most.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.busy = self.late = 0.0
        self.rss = _resident()

    async def watch(self) -> None:
        while True:
            begun, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK)
            self.busy = max(self.busy, time.thread_time() - worked)
            self.late = max(self.late, time.perf_counter() - begun - _TICK)
            self.rss = max(self.rss, _resident())


@asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    watch = Watch()
    watching = asyncio.create_task(watch.watch())
    try:
        yield watch
        await asyncio.sleep(2 * _TICK)  # so that what came last is seen
    finally:
        watching.cancel()


def longest_wait(work: Callable[[], object]) -> float:
    """Seconds that this process works at most while a thread of it waits for another's `work` to let it run.

    Tried again where that is long: on a busy machine the waiting thread may not get a processor.
    """
    longest: list[float] = []
    while len(longest) < _TRIES and min(longest, default=HELD) >= HELD:
        working = threading.Thread(target=work)
        working.start()
        longest.append(0.0)
        while working.is_alive():
            begun = time.process_time()
            time.sleep(0.001)
            longest[-1] = max(longest[-1], time.process_time() - begun)
    return min(longest)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
