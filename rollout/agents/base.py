"""`Agent`: who acts in an episode, and the registry of the built-in agents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Self

from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_registered
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import Limits, Sandbox

# Short name -> dotted path of an `Agent` class. Any such path works as a name.
AGENTS = {
    "native": "slime_swe.rollout.agents.native.NativeAgent",
    "blocks": "slime_swe.rollout.agents.blocks.BlocksAgent",
    "step": "slime_swe.rollout.agents.step.StepAgent",
    "mini_swe_agent": "slime_swe.rollout.agents.mini_swe_agent.MiniSweAgent",
    "qwen_code": "slime_swe.rollout.agents.qwen_code.QwenCode",
    "aider": "slime_swe.rollout.agents.aider.Aider",
    "claude_code": "slime_swe.rollout.agents.claude_code.ClaudeCode",
    "codex": "slime_swe.rollout.agents.codex.Codex",
    "opencode": "slime_swe.rollout.agents.opencode.Opencode",
    "openhands": "slime_swe.rollout.agents.openhands.OpenHands",
}
IN_PROCESS = {"native", "blocks", "step"}  # of these, those that are no program


class AgentError(InfrastructureError):
    """The agent's own program failed (is missing, can't start, can't reach its model): never the policy's doing."""


class Agent:
    """One object plays all episodes of a run. The class states its needs; nothing else has to know its name.

    limits: what its sandboxes must grant it, None for the pool's own. layers: see `SandboxPool.open`.
    """

    is_program: ClassVar[bool] = False  # runs in the sandbox, which must take layers and give out a port
    calls_tools: ClassVar[bool] = False  # its policy can act by tool calls alone, which `Counters.tool_calls` has
    takes_grammar: ClassVar[bool] = False  # each of its model calls asks for a turn of one form, by `Sampling.grammar`
    check_script: ClassVar[Sequence[str]] = ()  # what the policy says turn by turn in `slime-swe agent check`
    malformed_script: ClassVar[Sequence[str]] = ()  # the same with a malformed turn, where `check_script` has no calls
    limits: ClassVar[Limits | None] = None
    layers: tuple[Path, ...] = ()

    @classmethod
    def open(cls, settings: RolloutSettings) -> AbstractAsyncContextManager[Self]:
        """Open an agent for a run. Raises `UserError` if it can't be opened."""
        raise NotImplementedError

    @classmethod
    def open_at_endpoint(cls, settings: RolloutSettings) -> AbstractAsyncContextManager[Agent]:
        """Open an agent whose model is at `settings.endpoint`, an API that speaks messages and no tokens, to be
        evaluated.

        Raises `UserError` where this agent can't be played so.
        """
        raise UserError(
            f"rollout.agent={settings.agent} can't be evaluated at an endpoint: {cls.__name__} has no "
            f"open_at_endpoint. These can: {', '.join(name for name in AGENTS if name not in ('blocks', 'step'))}"
        )

    @property
    def placeholder_token(self) -> int | None:
        """Any valid token id. It stands, masked, in an episode without a sampled token. None where the model's tokens
        are not known."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, for people."""
        raise NotImplementedError

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """Work on the task, recording every model call in `session`, and say why it ended.

        Raises `EngineError`, `SandboxError` or `AgentError` for what infrastructure does; may be cancelled at any
        await.
        """
        raise NotImplementedError


def agent_class(name: str) -> type[Agent]:
    """Find the agent of a name in `AGENTS`, or at a dotted path. Raises `UserError`."""
    found: type[Agent] = load_registered(name, AGENTS, "rollout.agent")
    return found
