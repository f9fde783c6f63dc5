"""`Gate`: where model calls wait while the run wants none, with their sandboxes alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from slime_swe.rollout.replies import EngineAborted


class Gate:
    """Every request to an engine passes it, and so does the rest of a turn that an engine has aborted.

    `drain` pauses a run's episodes at their model calls, which keep what was sampled so far; `open` lets them go on.
    A gate belongs to one event loop.
    """

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._is_unwanted: Callable[[], bool] = lambda: False
        self._inside = 0

    @property
    def is_closed(self) -> bool:
        """Whether calls wait."""
        return not self._open.is_set()

    @property
    def inside(self) -> int:
        """How many requests are with the engines."""
        return self._inside

    def open(self) -> None:
        """Let calls pass."""
        self._open.set()

    def close(self) -> None:
        """Let no further request pass. Those that are with the engines are left to them."""
        self._open.clear()

    def stop_when(self, is_unwanted: Callable[[], bool]) -> None:
        """Refuse calls while this is true, since nobody wants their episodes: for a loop that has the engines abort and
        says so in a flag of its own alone, as SLiME's does.
        """
        self._is_unwanted = is_unwanted

    async def wait(self) -> None:
        """Until the gate is open. Raises `EngineAborted` if the episode is unwanted."""
        while self.is_closed:
            await self._open.wait()
        if self._is_unwanted():
            raise EngineAborted("the run wants no more of this episode")

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """`wait`, and be inside until the engine has replied."""
        await self.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def empty(self) -> None:
        """Until no request is with the engines."""
        await self._empty.wait()

    async def drain(self, abort: Callable[[], Awaitable[object]], *, interval: float = 1.0) -> None:
        """Close, and have the engines abort what they sample until they have nothing left, at most every `interval`
        seconds: a request that was on its way to an engine misses an abort.
        """
        self.close()
        while self._inside:
            await abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.empty(), interval)
