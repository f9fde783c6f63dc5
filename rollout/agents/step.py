"""One reply behind a recorded episode, whose tool calls are the answer and are not run (`data_sources/steps.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from slime_swe.data_sources.steps import ANSWER, Line, prompt_of
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.rollout.agents.native import SamplingAgent, load_template
from slime_swe.rollout.chat.template import SampledTurn
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from slime_swe.rollout.chat.tool_formats import ParsedTurn, parse, tool_format
from slime_swe.rollout.client import MIN_REPLY, Sampling
from slime_swe.rollout.engine import engine_client
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason, Turn, call_of
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import Sandbox


@dataclass(eq=False)
class StepAgent(SamplingAgent):
    """An agent that goes on from a recorded episode's tokens, samples once, and leaves the reply's calls as its answer.

    A reply with a malformed call, or none, leaves no answer.
    """

    calls_tools = True
    vocabulary: str = field(default="")

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open`. Raises `TemplateError` where the chat template can't be used token-exactly."""
        format = tool_format(settings.tool_format)
        template = await asyncio.to_thread(load_template, settings.checkpoint, settings.chat_template, format)
        vocabulary = await asyncio.to_thread(vocabulary_of, Path(settings.checkpoint))
        async with await engine_client(settings) as client:
            yield cls(settings, client, template, vocabulary)

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`. Raises `UserError` for an episode of another vocabulary."""
        prompt, line = await asyncio.to_thread(prompt_of, task)
        if line.vocabulary != self.vocabulary:
            raise UserError(
                f"the steps of {line.episode} are tokens of another vocabulary than that of "
                f"{self.settings.checkpoint}: take episodes of a model with the same one"
            )
        now = session.seconds
        head = session.add_context(prompt, [Turn("user", task.statement, 0, len(prompt), now, now)], line.tools)
        if self.room_after(head) < MIN_REPLY:
            return StopReason.CONTEXT_FULL
        head, said = await self.sample(head, session, sampling, statistics)
        reply, turn = await asyncio.to_thread(self._read, said.tokens, line)
        calls = [call_of(call, f"call_1_{place}") for place, call in enumerate(turn.written)]
        text = turn.text_before.strip() if calls else reply.content
        head.turns = (replace(head.turns[0], text=text, reasoning=reply.reasoning, calls=calls),)
        if said.finish_reason == "length":
            return StopReason.MAX_RESPONSE
        statistics.malformed_calls += turn.error is not None
        if turn.error is not None or not turn.calls:
            return StopReason.NO_TOOL_CALL
        statistics.tool_calls.update(call.name for call in turn.calls)
        answer = [{"name": call.name, "arguments": msgspec.Raw(call.arguments.encode())} for call in calls]
        with statistics.sandbox_time():
            await sandbox.write_file(ANSWER, msgspec.json.encode(answer))
        return StopReason.SUBMITTED

    def _read(self, tokens: list[int], line: Line) -> tuple[SampledTurn, ParsedTurn]:
        said = self.template.read(tokens)
        return said, parse(said.content, self.settings.tool_format, line.tools)
