"""The native agent: a plain tool loop over the engine's token interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from slime_swe.data_sources.task import Task
from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.chat.template import ChatTemplate, Message
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.chat.tool_formats import ParsedTurn, ToolCall, parse
from slime_swe.rollout.client import MIN_REPLY, EngineClient, Generation, Sampling
from slime_swe.rollout.engine import engine_client
from slime_swe.rollout.episode import EpisodeStatistics, StopReason
from slime_swe.rollout.sandbox.base import Sandbox
from slime_swe.rollout.session import Session
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.rollout.tools import TOOLS, ToolResult

MIN_SHOWN = 80  # characters: a result cut shorter than this would be of no use to the policy
MAX_CUT_TURNS = 3  # in a row without a call that was run: the next one would be cut as well
_TOOLS = {tool.spec.name: tool for tool in TOOLS}
_SCHEMAS = [tool.spec.schema() for tool in TOOLS]
_CHANGES_FILES = frozenset({"bash", "str_replace"})


@dataclass(eq=False)
class NativeAgent(Agent):
    """Samples a turn, runs its calls in order, appends their results, until something ends the episode."""

    settings: RolloutSettings
    client: EngineClient
    template: ChatTemplate

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open`. Raises `TemplateError` where the chat template can't be used token-exactly."""
        template = await asyncio.to_thread(load_template, settings.checkpoint, settings.chat_template)
        async with await engine_client(settings) as client:
            yield cls(settings, client, template)

    @property
    def placeholder_token(self) -> int:
        return self.template.stop_token_ids[0]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.template.decode(tokens)

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`."""
        return await _Run(self, task, sandbox, session, sampling, statistics).play()

    def opening(self, task: Task) -> list[Message]:
        system = self.settings.system_prompt
        first: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": task.statement}]


@dataclass
class _Run:
    """One episode's state. Other threads read what the policy wrote and tokenise what it is shown: a turn of many calls
    takes seconds, which the loop that runs all episodes must not wait for."""

    agent: NativeAgent
    task: Task
    sandbox: Sandbox
    session: Session
    sampling: Sampling
    statistics: EpisodeStatistics
    submitted: bool = False
    cut_in_a_row: int = 0  # turns that were cut before a call was complete

    def __post_init__(self) -> None:
        self.settings, self.template = self.agent.settings, self.agent.template
        self.head = self.session.add_context(self.template.first_prompt(self.agent.opening(self.task)))

    @property
    def room(self) -> int:
        """Tokens that the episode may still grow by."""
        return self.settings.max_context - self.head.end

    async def play(self) -> StopReason:
        if self.room < MIN_REPLY:
            return StopReason.CONTEXT_FULL
        while True:
            generation = await self._sample()
            turn = await asyncio.to_thread(self._parsed, generation)
            cut = generation.finish_reason == "length"
            if not turn.written and (self.room < MIN_REPLY or not cut):
                return StopReason.CONTEXT_FULL if self.room < MIN_REPLY else StopReason.NO_TOOL_CALL
            self.cut_in_a_row = self.cut_in_a_row + 1 if cut and not turn.calls else 0
            results = await self._answer(turn)
            if self.submitted:
                return StopReason.SUBMITTED
            if self.statistics.turns >= self.settings.max_turns:
                return StopReason.MAX_TURNS
            if self.room < MIN_REPLY:
                return StopReason.CONTEXT_FULL
            if self.cut_in_a_row == MAX_CUT_TURNS:
                return StopReason.MAX_RESPONSE
            notice = cut_notice(len(generation.tokens), any_run=bool(turn.calls)) if cut else ""
            room = self.room - self._reserve()
            added = await asyncio.to_thread(fit, results, partial(self._delta, generation.tokens, notice), room)
            if added is None:
                return StopReason.CONTEXT_FULL
            self.head = self.session.add_context(added)

    def _reserve(self) -> int:
        """Tokens kept for the next reply when results are cut: up to a quarter of the room."""
        wanted: int = self.sampling.params["max_new_tokens"]
        return max(MIN_REPLY, min(wanted, self.room // 4))

    async def _sample(self) -> Generation:
        statistics, settings = self.statistics, self.settings
        params = self.sampling.for_turn(statistics.turns, self.room, self.template.stop_token_ids)
        experts_from = self.head.experts_end if settings.routing_replay else None
        with statistics.engine_time():
            generation = await self.agent.client.generate(
                self.head.encoded_path(), params, experts_from=experts_from, headers=self.sampling.headers
            )
        self.head = self.session.add_sampled(generation)
        statistics.add(generation)
        return generation

    async def _answer(self, turn: ParsedTurn) -> list[str]:
        """What the policy is shown of each call, in order; calls after a `submit` are not run."""
        texts = []
        for call in turn.calls:
            result = await self._call(call)
            texts.append(result.text)
            if result.submitted:
                self.submitted = True
                return texts
        if turn.error is not None:
            self.statistics.malformed_calls += 1
            texts.append(f"Error: {turn.error}")
        return texts

    async def _call(self, call: ToolCall) -> ToolResult:
        tool = _TOOLS.get(call.name)
        if tool is None:
            wrong: str | None = f"unknown tool {call.name!r}; available: {', '.join(_TOOLS)}"
        else:
            wrong = tool.spec.check(call.arguments)
        if tool is None or wrong is not None:
            self.statistics.malformed_calls += 1
            return ToolResult(f"Error: {wrong}", ok=False)
        self.statistics.tool_calls[call.name] += 1
        with self.statistics.sandbox_time():
            await self._keep_first_edit(call.name)
            try:
                result = await tool(self.sandbox, self.task, call.arguments)
            except OSError as error:  # of a file operation inside the sandbox: a path through a file, a full disk
                result = ToolResult(f"Error: {error.strerror or error}", ok=False)
        if call.name == "str_replace":
            self.statistics.edits += result.ok
            self.statistics.failed_edits += not result.ok
        return result

    async def _keep_first_edit(self, tool: str) -> None:
        """Take the diff only when something else is about to change files; else the final patch is the same."""
        statistics = self.statistics
        if statistics.edits and statistics.first_edit_patch is None and tool in _CHANGES_FILES:
            statistics.first_edit_patch = await self.sandbox.diff()

    def _parsed(self, generation: Generation) -> ParsedTurn:
        said = self.template.read(generation.tokens)
        self.statistics.unkept_turns += not said.kept
        return parse(said.content, self.settings.tool_format, _SCHEMAS)

    def _delta(self, after: Sequence[int], notice: str, texts: list[str]) -> list[int]:
        messages: list[Message] = [{"role": "tool", "content": text} for text in texts]
        if notice:  # never a tool's result: it may be the answer to a turn without a call
            messages.append({"role": "user", "content": notice})
        return self.template.delta(messages, after)


def cut_notice(tokens: int, *, any_run: bool) -> str:
    """What the policy is told after a turn that its limit cut at so many tokens."""
    what = "Only its complete tool calls were run." if any_run else "No tool call in it was complete, so none was run."
    return (
        f"Your reply was cut off at its limit of {tokens} tokens. {what} "
        "Reply again, more briefly, with a complete tool call. Make a long edit in several calls."
    )


def fit(texts: Sequence[str], encode: Callable[[list[str]], list[int]], room: int) -> list[int] | None:
    """`encode(texts)`, with the texts cut as little as needed for at most `room` tokens; None if they don't fit even
    when cut.

    All texts are cut at one length, the largest that fits, so that short ones stay whole.
    """
    tokens = encode(list(texts))
    if len(tokens) <= room:
        return tokens
    fitting = None
    low, high = MIN_SHOWN, max(map(len, texts), default=0)
    while low <= high:
        middle = (low + high) // 2
        tokens = encode([cut(text, middle) for text in texts])
        if len(tokens) <= room:
            fitting, low = tokens, middle + 1
        else:
            high = middle - 1
    return fitting


def cut(text: str, length: int) -> str:
    """The text's first and last parts, `length` characters in all, with a marker that says how many are missing."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}\n[cut: {len(text) - length} characters]\n{text[len(text) - (length - head) :]}"


def load_template(checkpoint: str, chat_template: str = "") -> ChatTemplate:
    """A template with the native agent's tools, proven: the checkpoint's, or what `model.chat_template` names."""
    template = ChatTemplate(load_tokenizer(checkpoint, chat_template), _SCHEMAS)
    template.prove()
    return template
