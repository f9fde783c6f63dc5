"""Things that are opened once for an event loop and closed with it (connections, sandbox pools, tokenizers).

SLiME calls the plug-ins thousands of times and never says "start" or "stop"; the loop's own life is the scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")


class LoopScope:
    """What one event loop has opened, by key."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._opened: dict[Hashable, asyncio.Future[Any]] = {}
        self._closing = asyncio.Event()
        self._holder = asyncio.create_task(self._keep(), name="loop scope")

    async def get(self, key: Hashable, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """What `open_it` enters to, opened by the first caller of this key; a failure to open is not remembered."""
        if key not in self._opened:
            self._opened[key] = asyncio.ensure_future(self._stack.enter_async_context(open_it()))
            self._opened[key].add_done_callback(lambda done: self._forget_failure(key, done))
        opened: T = await asyncio.shield(self._opened[key])  # a cancelled caller must not break the others
        return opened

    async def close(self) -> None:
        """Close everything, last opened first."""
        self._closing.set()
        await self._holder

    async def _keep(self) -> None:
        # `asyncio.run` and its kin cancel the tasks that are left, and wait for them, before they close the loop.
        try:
            await self._closing.wait()
        finally:
            _SCOPES.pop(asyncio.get_running_loop(), None)
            self._opened.clear()
            await self._stack.aclose()

    def _forget_failure(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._opened.pop(key, None)


_SCOPES: dict[asyncio.AbstractEventLoop, LoopScope] = {}  # a loop's entry goes when the loop ends


async def loop_scope() -> LoopScope:
    """The running loop's scope."""
    loop = asyncio.get_running_loop()
    if loop not in _SCOPES:
        _SCOPES[loop] = LoopScope()
    return _SCOPES[loop]


async def close_loop_scope() -> None:
    """Close what the running loop has opened, before the loop ends; it may be opened again."""
    scope = _SCOPES.get(asyncio.get_running_loop())
    if scope is not None:
        await scope.close()
