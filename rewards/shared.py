"""The state that a task's gradings share within an event loop: results that are the same for all patches, and turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from slime_swe.data_sources.task import Task
from slime_swe.rollout.loop_scope import opened_once

KEPT = 128  # of a kind whose results may be whole files

T = TypeVar("T")


async def cached(
    kind: str,
    key: Hashable,
    make: Callable[[], Awaitable[T]],
    keep: Callable[[T], bool] = lambda _: True,
    most: int = KEPT,
) -> T:
    """Return what `make` gives. The first caller with this key makes it for all. A failure is not cached, nor what
    is not worth to `keep`. most: results of this kind that are kept, those that were asked for last.

    Where all that wait for it are cancelled it is cancelled too: nobody would hear of its failure but a later caller.
    """
    known: OrderedDict[Hashable, _Shared[T]] = await opened_once(
        ("cached", kind), lambda: contextlib.nullcontext(OrderedDict())
    )
    if key not in known:
        known[key] = _Shared(asyncio.ensure_future(make()))
        while len(known) > most:
            known.popitem(last=False)
    known.move_to_end(key)
    shared, kept = known[key], False
    shared.waiting += 1
    try:
        result = await asyncio.shield(shared.future)  # a cancelled caller must not break the others
        kept = keep(result)
        return result
    finally:
        shared.waiting -= 1
        abandoned = not shared.waiting and not shared.future.done()
        if abandoned:
            shared.future.cancel()
        if (abandoned or (not kept and shared.future.done())) and known.get(key) is shared:
            del known[key]


@dataclass
class _Shared(Generic[T]):
    """A result that is being made, and how many wait for it."""

    future: asyncio.Future[T]
    waiting: int = 0


async def lock_of(task: Task) -> GroupLock:
    """Return the lock of all runs of the task in the running loop, for as long as anyone holds or awaits it."""
    locks: WeakValueDictionary[str, GroupLock] = await opened_once(
        "locks of tasks", lambda: contextlib.nullcontext(WeakValueDictionary())
    )
    return locks.setdefault(task.id, GroupLock())


class GroupLock:
    """A lock of one event loop. Any number of callers hold it at once if they name the same group, and holders of two
    groups never overlap (group mutual exclusion; Joung, 1998).

    - Nobody starves. While a caller waits, newcomers queue behind it, even those of the group that holds the lock. When
      the last holder leaves, the first caller in the queue enters with all others of its group that wait by then.
    - A caller that is cancelled leaves the queue, and whatever a holder raises releases its hold.
    """

    def __init__(self) -> None:
        self._group: Hashable = None
        self._holders = 0
        self._queue: list[tuple[Hashable, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def held(self, group: Hashable) -> AsyncIterator[None]:
        """Wait until no other group holds the lock, and hold it. It can't be entered twice by one caller: the second
        entry may queue behind a caller that waits for the first to leave."""
        await self._acquire(group)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, group: Hashable) -> None:
        if not self._queue and (not self._holders or group == self._group):
            self._group = group
            self._holders += 1
            return
        entered = asyncio.get_running_loop().create_future()
        self._queue.append((group, entered))
        try:
            await entered
        except asyncio.CancelledError:
            if entered.cancelled():
                self._admit()  # those that it held up
            else:
                self._release()  # it was let in just before
            raise

    def _release(self) -> None:
        self._holders -= 1
        self._admit()

    def _admit(self) -> None:
        """Let the next group in if nobody holds the lock, and more of the group that holds it if no other waits."""
        self._queue = [(group, entered) for group, entered in self._queue if not entered.cancelled()]
        if not self._holders and self._queue:
            self._group = self._queue[0][0]
        elif any(group != self._group for group, _ in self._queue):
            return
        admitted = [entered for group, entered in self._queue if group == self._group]
        self._queue = [(group, entered) for group, entered in self._queue if group != self._group]
        self._holders += len(admitted)
        for entered in admitted:
            entered.set_result(None)
