"""`NativeAtEndpoint`: the native agent, whose model is at an endpoint and calls tools by the API's own field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

from msgspec.structs import replace

from slime_swe.data_sources.task import Task
from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.agents.native import SCHEMAS, Answer, NativeAgent, NativeRun
from slime_swe.rollout.chat.template import SampledTurn
from slime_swe.rollout.chat.tool_formats import MalformedCall, ParsedTurn, ToolCall, ToolFormat
from slime_swe.rollout.client import Generation, Sampling
from slime_swe.rollout.endpoint.client import EndpointClient, endpoint_client
from slime_swe.rollout.endpoint.replies import ChatReply, ContextFull
from slime_swe.rollout.endpoint.session import Untokenised, messages_to
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason, Turn, call_of
from slime_swe.rollout.proxy.conversation import MessageCall, read_arguments
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import Sandbox

_NOT_RUN = "Error: not run, as a call before it is malformed"


@dataclass(eq=False)
class NativeAtEndpoint(Agent):
    """The tools, limits and stop reasons are `NativeAgent`'s."""

    settings: RolloutSettings
    client: EndpointClient

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        async with await endpoint_client(settings) as client:
            yield cls(settings, client)

    @property
    def placeholder_token(self) -> None:
        return None

    def decode(self, tokens: Sequence[int]) -> str:
        return ""

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`."""
        agent = NativeAgent(self.settings, cast(Any, self.client), cast(Any, Untokenised()))
        try:
            return await _Run(agent, task, sandbox, session, sampling, statistics).play()
        except ContextFull:
            return StopReason.CONTEXT_FULL


@dataclass
class _Run(NativeRun):
    """Sizes are those that the endpoint counted; of what it has not seen yet they are estimates."""

    context: int = 0  # tokens of the conversation up to the last reply
    reply: ChatReply | None = None

    @property
    def format(self) -> ToolFormat | None:
        return None

    @property
    def room(self) -> int:
        return self.settings.max_context - self.context

    async def _sample(self) -> Generation:
        client = cast(EndpointClient, self.agent.client)
        params = self.sampling.for_turn(self.statistics.turns, self.room, ())
        began = self.session.seconds
        with self.statistics.engine_time():
            reply = await client.complete(messages_to(self.head), SCHEMAS, params)
        self.reply, self.context = reply, reply.prompt_tokens + reply.completion_tokens
        self.head = self.session.add_sampled(reply, Turn("assistant", "", 0, 0, began, self.session.seconds))
        self.statistics.add(reply)
        return reply

    def _read(self, generation: Generation) -> tuple[SampledTurn, ParsedTurn]:
        assert isinstance(generation, ChatReply)
        said = SampledTurn(generation.reasoning, generation.text, generation.reasoning_tokens, kept=True)
        return said, ParsedTurn(generation.text, [_written(call) for call in generation.calls])

    def _note(self, said: SampledTurn, turn: ParsedTurn) -> None:
        assert self.reply is not None
        calls = [call_of(call, given.id) for call, given in zip(turn.written, self.reply.calls, strict=True)]
        (placed,) = self.head.turns
        self.head.turns = (replace(placed, text=said.content, reasoning=said.reasoning, calls=calls),)

    async def _answer(self, turn: ParsedTurn) -> list[Answer]:
        """Answer also the calls that were not run: an API takes no history in which a call has no answer."""
        answers = await super()._answer(turn)
        if self.submitted:
            return answers
        now = self.session.seconds
        return answers + [Answer(_NOT_RUN, now, now, ok=False)] * (len(turn.written) - len(answers))


def _written(call: MessageCall) -> ToolCall | MalformedCall:
    arguments = read_arguments(call)
    if arguments is None:
        return MalformedCall(call.name, call.arguments, f"the arguments of {call.name} must be one JSON object")
    return ToolCall(call.name, arguments)
