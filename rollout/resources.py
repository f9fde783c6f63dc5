"""What the plug-ins share within an event loop: the agent and the pool of sandboxes."""

from __future__ import annotations

from slime_swe.errors import UserError
from slime_swe.rollout.agents.base import Agent, agent_class
from slime_swe.rollout.loop_scope import loop_scope
from slime_swe.rollout.sandbox.base import Sandboxes
from slime_swe.rollout.sandbox.pool import SandboxPool, make_backend, names_that
from slime_swe.rollout.settings import RolloutSettings


async def agent_for(settings: RolloutSettings) -> Agent:
    """The running loop's agent for these settings."""
    scope = await loop_scope()
    return await scope.get(("agent", settings), lambda: agent_class(settings.agent).open(settings))


async def sandboxes_for(settings: RolloutSettings) -> Sandboxes:
    """The running loop's sandboxes; all that use one backend and concurrency share one pool."""
    scope = await loop_scope()
    key = (settings.sandbox, settings.sandbox_concurrency)
    return await scope.get(("sandboxes", *key), lambda: SandboxPool(key[0], concurrency=key[1]))


def require_room_for(agent: str, sandbox: str) -> None:
    """Raises `UserError` where there is no such agent, or it is a program and these sandboxes can't hold one."""
    if agent_class(agent).is_program and not make_backend(sandbox).takes_layers:
        raise UserError(
            f"{agent} is a program of its own, which {sandbox} sandboxes can't hold: set rollout.sandbox to one of "
            f"{', '.join(names_that('takes_layers'))}"
        )
