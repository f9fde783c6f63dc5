"""Resources that are opened once for an event loop and closed with it (connections, sandbox pools, tokenizers).

SLiME calls the plug-ins thousands of times and never signals a start or an end, so the life of the loop is the scope.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any, TypeVar

from slime_swe.errors import UserError
from slime_swe.rollout.agents.base import Agent, agent_class
from slime_swe.rollout.client import Gate
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import Sandboxes
from slime_swe.sandbox.pool import SandboxPool, make_backend, names_that

LEAST_SHARE = 0.25  # of the sandboxes that a run asks for: so many are open at once on a machine that bears fewer

T = TypeVar("T")


class _LoopScope:
    """The resources that one event loop has opened, by key."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.opened: dict[Hashable, asyncio.Future[Any]] = {}
        self.closing = asyncio.Event()
        self.holder = asyncio.create_task(self._keep(), name="loop scope")

    async def _keep(self) -> None:
        # `asyncio.run` and its kin cancel the tasks that are left, and wait for them, before they close the loop.
        try:
            await self.closing.wait()
        finally:
            _SCOPES.pop(asyncio.get_running_loop(), None)
            self.opened.clear()
            await self.stack.aclose()

    def forget_failure(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self.opened.pop(key, None)


_SCOPES: dict[asyncio.AbstractEventLoop, _LoopScope] = {}  # a loop's entry goes when the loop ends


async def opened_once(key: Hashable, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> T:
    """Return what `open_it` enters to, opened by the running loop's first caller with this key. A failure to open is
    not remembered.
    """
    loop = asyncio.get_running_loop()
    if loop not in _SCOPES:
        _SCOPES[loop] = _LoopScope()
    scope = _SCOPES[loop]
    if key not in scope.opened:
        scope.opened[key] = asyncio.ensure_future(scope.stack.enter_async_context(open_it()))
        scope.opened[key].add_done_callback(lambda done: scope.forget_failure(key, done))
    opened: T = await asyncio.shield(scope.opened[key])  # a cancelled caller must not break the others
    return opened


async def close_loop_scope() -> None:
    """Close what the running loop has opened, last opened first, before the loop ends; it may be opened again."""
    scope = _SCOPES.get(asyncio.get_running_loop())
    if scope is not None:
        scope.closing.set()
        await scope.holder


async def gate_of_loop() -> Gate:
    """Return the gate that the model calls of all the running loop's agents pass."""
    return await opened_once("gate", lambda: nullcontext(Gate()))


async def agent_for(settings: RolloutSettings) -> Agent:
    """Return the running loop's agent for these settings. Raises `UserError` where it can't take their grammar."""
    made = agent_class(settings.agent)
    if settings.grammar and (settings.endpoint or not made.takes_grammar):
        what = "an endpoint" if settings.endpoint else f"rollout.agent={settings.agent}"
        raise UserError(f"rollout.grammar: {what} takes none; leave it empty")
    open_it = made.open_at_endpoint if settings.endpoint else made.open
    return await opened_once(("agent", settings), lambda: open_it(settings))


async def sandboxes_for(settings: RolloutSettings) -> Sandboxes:
    """Return the running loop's sandboxes; all that use one backend and concurrency share one pool."""
    most = settings.sandbox_concurrency
    least = math.ceil(most * LEAST_SHARE)
    room = settings.keep_disk_free
    key = ("sandboxes", settings.sandbox, most, settings.evaluation)
    return await opened_once(key, lambda: SandboxPool(settings.sandbox, concurrency=most, least=least, keep_free=room))


def require_room_for(agent: str, sandbox: str) -> None:
    """Raise `UserError` where there is no such agent, or it is a program and these sandboxes can't hold one."""
    if agent_class(agent).is_program and not make_backend(sandbox).takes_layers:
        raise UserError(
            f"{agent} is a program of its own, which {sandbox} sandboxes can't hold: set rollout.sandbox to one of "
            f"{', '.join(names_that('takes_layers'))}"
        )
