"""What an event loop, or another thread, is kept from by the work of others. It is judged by ratios of processor times
that are taken in one run: they hold on a processor of any speed, beside whatever else runs.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.effort import TRIES, processor_seconds, yardstick

_TICK = 0.002
_LEAST_ELSEWHERE = 4  # yardsticks: less work than this is taken for as much
_LEAST_WORK = 16  # yardsticks, too
_FREE = 1 / 16  # a share that needs no further try


class Watch:
    """busy: the longest time in seconds that the loop's thread worked without a break; what other threads do, and a
    busy machine, are not in it. elsewhere: the seconds that all other threads of this process worked. held: the longest
    time that this process worked, the loop or not, before the loop had its turn again.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.busy = self.elsewhere = self.held = 0.0
        self._others = _others()

    async def watch(self) -> None:
        while True:
            worked, all_worked = time.thread_time(), time.process_time()
            await asyncio.sleep(_TICK)
            self.busy = max(self.busy, time.thread_time() - worked)
            self.held = max(self.held, time.process_time() - all_worked)
            self.elsewhere = _others() - self._others

    def assert_free(self) -> None:
        """Fails where the loop was held: by one stretch of half of what was worked elsewhere, or more.

        Work that moves onto the loop is in `busy`, and no more in `elsewhere`. A stretch of two yardsticks is let pass,
        so that work of less than that is not seen.
        """
        unit = yardstick()
        if self.busy >= max(self.elsewhere, _LEAST_ELSEWHERE * unit) / 2:
            seen = f"{self.busy / unit:.1f} yardsticks of work in one stretch, {self.elsewhere / unit:.1f} elsewhere"
            raise AssertionError(f"the loop was held: {seen}")


@asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    """What there is before is left out of collections of garbage meanwhile: one of all that earlier tests have left
    takes long, and may come in any stretch.
    """
    watch = Watch()
    watching = asyncio.create_task(watch.watch())
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    await asyncio.sleep(0)  # so that what comes first is seen
    try:
        yield watch
        await asyncio.sleep(2 * _TICK)  # so that what came last is seen
    finally:
        if ours:
            gc.unfreeze()
        watching.cancel()


def held_share(work: Callable[[], object]) -> float:
    """How long another thread waits at most for `work` to let it run, as a share of all that `work` takes.

    Both are seconds that this process works; work of less than sixteen yardsticks is taken for as much. The best of
    five tries: on a busy machine the waiting thread may not get a processor.
    """
    least, shares = _LEAST_WORK * yardstick(), list[float]()
    while len(shares) < TRIES and min(shares, default=1.0) > _FREE:
        whole, longest, go = list[float](), 0.0, threading.Event()

        def working(whole: list[float] = whole, go: threading.Event = go) -> None:
            go.wait()
            whole.append(processor_seconds(work))

        thread = threading.Thread(target=working)
        thread.start()
        alive, begun = True, time.process_time()
        go.set()
        while alive:
            time.sleep(0.001)
            alive, now = thread.is_alive(), time.process_time()
            longest, begun = max(longest, now - begun), now
        shares.append(longest / max(*whole, least))
    return min(shares)


def _others() -> float:
    return time.process_time() - time.thread_time()
