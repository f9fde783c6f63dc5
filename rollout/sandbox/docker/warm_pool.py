"""`WarmPool`: makes things that take long to make ahead of need."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class WarmPool(Generic[K, T]):
    """At most `most` things, of the kinds that were requested last. Each one that is taken is replaced in the
    background.

    So a group of episodes on one image finds its containers started. None is kept for images that are no longer
    requested. rest: seconds until one is replaced, so that what it was taken for begins on a quiet machine.
    """

    def __init__(self, most: int, discard: Callable[[T], Awaitable[None]], rest: float = 0.0) -> None:
        self._most = most
        self._rest = rest
        self._discard = discard
        self._ready: OrderedDict[K, list[T]] = OrderedDict()  # the kind asked for last at the end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._making = 0
        self._closed = asyncio.Event()

    async def take(self, kind: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One of this kind, ready or made now. Raises what `make` raises."""
        self._closed.clear()
        ready = self._ready.setdefault(kind, [])
        self._ready.move_to_end(kind)
        thing = ready.pop() if ready else None
        self._spawn(self._replace(kind, make))
        if thing is not None:
            return thing
        making = self._spawn(make())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._spawn(self._discard_made(making))
            raise

    async def close(self) -> None:
        """Discard all, those being made too."""
        self._closed.set()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        ready, self._ready = self._ready, OrderedDict()
        await asyncio.gather(*(self._discard(thing) for things in ready.values() for thing in things))

    async def _discard_made(self, making: asyncio.Task[T]) -> None:
        await self._discard(await making)

    def _count(self) -> int:
        return sum(map(len, self._ready.values())) + self._making

    async def _replace(self, kind: K, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Make one more of this kind. If all places are taken, it replaces one of the kind that was requested longest
        ago.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), self._rest)
        if self._closed.is_set():
            return
        if self._count() >= self._most:
            oldest = next((things for other, things in self._ready.items() if things and other != kind), None)
            if oldest is None:
                return
            await self._discard(oldest.pop())
        self._making += 1
        try:
            thing = await make()
        finally:
            self._making -= 1
        self._ready.setdefault(kind, []).append(thing)

    def _spawn(self, work: Coroutine[Any, Any, V]) -> asyncio.Task[V]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who next needs one meets the same error
