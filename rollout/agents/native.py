"""The native agent: a plain tool loop over the engine's token interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence, Sized
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, TypeVar

from msgspec.structs import replace

from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_object
from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.chat.template import ChatTemplate, Content, Message, Rendered, SampledTurn
from slime_swe.rollout.chat.tokenizer import eos_token_ids, load_tokenizer
from slime_swe.rollout.chat.tool_formats import ParsedTurn, ToolCall, ToolFormat, parse, tool_format
from slime_swe.rollout.client import MIN_REPLY, EngineClient, Generation, Sampling
from slime_swe.rollout.engine import engine_client, require_grammar
from slime_swe.rollout.episode import EpisodeStatistics, Node, Session, StopReason, Turn, call_of
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.rollout.tools import TOOLS, ToolResult, failing_tests
from slime_swe.sandbox.base import Sandbox

MIN_SHOWN = 80  # characters: a result cut shorter than this would be of no use to the policy
MAX_CUT_TURNS = 3  # in a row without a call that was run: the next one would be cut as well
_TOOLS = {tool.spec.name: tool for tool in TOOLS}
SCHEMAS = [tool.spec.schema() for tool in TOOLS]
_CHANGES_FILES = frozenset({"bash", "str_replace"})
AT_ENDPOINT = "slime_swe.rollout.endpoint.native.NativeAtEndpoint"  # by name: training needs nothing of it

S = TypeVar("S", bound=Sized)


class Answer(NamedTuple):
    """The text that a call is answered with, when the call began and when it ended, in seconds since the episode began;
    `ok` is False where the call did nothing."""

    text: str
    began: float
    ended: float
    ok: bool = True


@dataclass(eq=False)
class SamplingAgent(Agent):
    """An agent of this process that samples its turns itself, by a chat template, and records each of them."""

    settings: RolloutSettings
    client: EngineClient
    template: ChatTemplate

    @property
    def placeholder_token(self) -> int:
        return self.template.stop_token_ids[0]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.template.decode(tokens)

    def room_after(self, head: Node) -> int:
        """Return how many tokens the episode may still grow by."""
        return self.settings.max_context - head.end

    async def sample(
        self, head: Node, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> tuple[Node, Generation]:
        """Sample the policy's turn behind `head`, and record it in the session with an empty text."""
        params = sampling.for_turn(statistics.turns, self.room_after(head), self.template.stop_token_ids)
        experts_from = head.experts_end if self.settings.routing_replay else None
        tolerance = sampling.grammar.tolerance if sampling.grammar else None
        began = session.seconds
        with statistics.engine_time():
            said = await self.client.generate(
                head.encoded_path(), params, experts_from=experts_from, headers=sampling.headers, tolerance=tolerance
            )
        turn = Turn("assistant", "", 0, len(said.tokens), began, session.seconds)
        node = session.add_sampled(said, turn)
        statistics.add(said, head)
        return node, said


@dataclass(eq=False)
class NativeAgent(SamplingAgent):
    """An agent that samples a turn, runs its calls in order and appends their results, until the episode ends."""

    calls_tools = True
    takes_grammar = True

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open`. Raises `TemplateError` where the chat template can't be used token-exactly."""
        format = tool_format(settings.tool_format)
        template = await asyncio.to_thread(load_template, settings.checkpoint, settings.chat_template, format)
        async with await engine_client(settings) as client:
            if grammar := settings.grammar_of(evaluation=settings.evaluation):
                await require_grammar(client, grammar)
            yield cls(settings, client, template)

    @classmethod
    def open_at_endpoint(cls, settings: RolloutSettings) -> AbstractAsyncContextManager[Agent]:
        """See `Agent.open_at_endpoint`."""

        agent: type[Agent] = load_object(AT_ENDPOINT, "rollout.agent")
        return agent.open(settings)

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`."""
        return await NativeRun(self, task, sandbox, session, sampling, statistics).play()


@dataclass
class NativeRun:
    """The state of one episode. Other threads read what the policy wrote and tokenise what it is shown: a turn of many
    calls takes seconds, which the loop that runs all episodes must not wait for."""

    agent: NativeAgent
    task: Task
    sandbox: Sandbox
    session: Session
    sampling: Sampling
    statistics: EpisodeStatistics
    submitted: bool = False
    cut_in_a_row: int = 0  # turns that were cut before a call was complete
    without_call: int = 0  # turns in a row that were not cut and hold no call, those that were cut left aside

    def __post_init__(self) -> None:
        self.settings, self.template = self.agent.settings, self.agent.template
        self.instructions = self.format.instructions if self.format else ""
        first = opening(self.task, self.settings.system_prompt, self.format)
        prompt, now = self.template.render_first(first), self.session.seconds
        turns = [Turn(one["role"], *content, now, now) for one, content in zip(first, prompt.contents, strict=True)]
        self.head = self.session.add_context(prompt.tokens, turns, [] if self.instructions else SCHEMAS)

    @property
    def format(self) -> ToolFormat | None:
        """The form in which calls are written; None where an API has a field for them."""
        return tool_format(self.settings.tool_format)

    @property
    def room(self) -> int:
        """The number of tokens that the episode may still grow by."""
        return self.agent.room_after(self.head)

    async def play(self) -> StopReason:
        if self.room < MIN_REPLY:
            return StopReason.CONTEXT_FULL
        while True:
            generation = await self._sample()
            said, turn = await asyncio.to_thread(self._read, generation)
            self._note(said, turn)
            cut = generation.finish_reason == "length"
            if not turn.written and self.room < MIN_REPLY:
                return StopReason.CONTEXT_FULL
            self.cut_in_a_row = self.cut_in_a_row + 1 if cut and not turn.calls else 0
            self.without_call = 0 if turn.written else self.without_call + (not cut)
            answers = await self._answer(turn)
            notice = self._notice(generation, turn)
            reason = self._limit()
            if reason is None:
                added = await asyncio.to_thread(
                    fit,
                    [answer.text for answer in answers],
                    partial(self._delta, generation.tokens, notice),
                    self.room - self._reserve(),
                )
                reason = StopReason.CONTEXT_FULL if added is None else None
            if reason is not None:
                self._show([Content(answer.text, 0, 0) for answer in answers], answers)
                return reason
            assert added is not None
            self._show(added.contents, answers, added.tokens)

    def _limit(self) -> StopReason | None:
        """Return why no further turn follows, as far as that is known before the calls' results are tokenised."""
        if self.submitted:
            return StopReason.SUBMITTED
        if self.without_call == self.settings.no_call_turns:
            return StopReason.NO_TOOL_CALL
        if self.statistics.turns >= self.settings.max_turns:
            return StopReason.MAX_TURNS
        if self.room < MIN_REPLY:
            return StopReason.CONTEXT_FULL
        return StopReason.MAX_RESPONSE if self.cut_in_a_row == MAX_CUT_TURNS else None

    def _show(self, contents: Sequence[Content], answers: Sequence[Answer], tokens: Sequence[int] = ()) -> None:
        """Record what follows the policy's turn: the answers to its calls, and a notice behind them. Without tokens,
        the policy has not seen it.
        """
        calls, now = self.head.turns[0].calls, self.session.seconds
        turns = []
        for number, content in enumerate(contents):
            if number < len(answers):
                _, began, ended, ok = answers[number]
                turns.append(Turn("tool", *content, began, ended, call_id=calls[number].id, failed=not ok))
            else:
                turns.append(Turn("user", *content, now, now, failed=True))  # what was cut off, or held no call
        if turns:
            self.head = self.session.add_context(tokens, turns)

    def _note(self, said: SampledTurn, turn: ParsedTurn) -> None:
        """Record what the policy's turn says."""
        number = self.statistics.turns
        calls = [call_of(call, f"call_{number}_{place}") for place, call in enumerate(turn.written)]
        text = turn.text_before.strip() if calls else said.content
        (placed,) = self.head.turns
        self.head.turns = (replace(placed, text=text, reasoning=said.reasoning, calls=calls),)

    def _reserve(self) -> int:
        """Return how many tokens are kept for the next reply when results are cut: up to a quarter of the room."""
        wanted: int = self.sampling.params["max_new_tokens"]
        return max(MIN_REPLY, min(wanted, self.room // 4))

    async def _sample(self) -> Generation:
        self.head, generation = await self.agent.sample(self.head, self.session, self.sampling, self.statistics)
        return generation

    async def _answer(self, turn: ParsedTurn) -> list[Answer]:
        """Run the calls in order, and return what the policy is shown of each; calls after a `submit` are not run."""
        answers = []
        for call in turn.calls:
            began = self.session.seconds
            result = await self._call(call)
            again = await self._failed_try() if result.submitted else None
            answers.append(Answer(again or result.text, began, self.session.seconds, result.ok))
            if result.submitted:
                self.submitted = again is None
                return answers
        if turn.error is not None:
            self.statistics.malformed_calls += 1
            answers.append(Answer(f"Error: {turn.error}", self.session.seconds, self.session.seconds, ok=False))
        return answers

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

    async def _failed_try(self) -> str | None:
        """Return what a policy that submits is told if it has another try; None if it has none, or all tests pass."""
        if self.statistics.tries >= self.settings.tries:
            return None
        with self.statistics.sandbox_time():
            failing = await failing_tests(self.sandbox, self.task)
        if failing is None:
            return None
        self.statistics.tries += 1
        which = f"{self.statistics.tries} of {self.settings.tries}"
        return f"{failing}\nThese tests fail, and they are right. Repair the code: this is try {which}."

    async def _keep_first_edit(self, tool: str) -> None:
        """Take the diff only when something else is about to change files; else the final patch is the same."""
        statistics = self.statistics
        if statistics.edits and statistics.first_edit_patch is None and tool in _CHANGES_FILES:
            statistics.first_edit_patch = await self.sandbox.diff()

    def _read(self, generation: Generation) -> tuple[SampledTurn, ParsedTurn]:
        said = self.template.read(generation.tokens)
        self.statistics.unkept_turns += not said.kept
        return said, parse(said.content, self.settings.tool_format, SCHEMAS)

    def _notice(self, generation: Generation, turn: ParsedTurn) -> str:
        """Return what the policy is told behind its calls' results; empty where these say all."""
        if generation.finish_reason == "length":
            return cut_notice(generation.completion_tokens, any_run=bool(turn.calls))
        return "" if turn.written else no_call_notice(self.format)

    def _delta(self, after: Sequence[int], notice: str, texts: list[str]) -> Rendered:
        if self.instructions:  # the results are a user's, and templates may take but one such message in a row
            content = "\n\n".join([*texts, notice] if notice else texts)
            return self.template.render_delta([{"role": "user", "content": content}], after)
        messages: list[Message] = [{"role": "tool", "content": text} for text in texts]
        if notice:  # never a tool's result: it may be the answer to a turn without a call
            messages.append({"role": "user", "content": notice})
        return self.template.render_delta(messages, after)


def opening(task: Task, system_prompt: str, format: ToolFormat | None = None) -> list[Message]:
    """Return an episode's first messages; without a system prompt, or a format that adds to it, the task's alone."""
    said = "\n\n".join(filter(None, [system_prompt, format.instructions if format else ""]))
    first: list[Message] = [{"role": "system", "content": said}] if said else []
    return [*first, {"role": "user", "content": task.statement}]


def cut_notice(tokens: int, *, any_run: bool) -> str:
    """Return what the policy is told after a turn that was cut at its limit of so many tokens."""
    what = "Only its complete tool calls were run." if any_run else "No tool call in it was complete, so none was run."
    return (
        f"Your reply was cut off at its limit of {tokens} tokens. {what} "
        "Reply again, more briefly, with a complete tool call. Make a long edit in several calls."
    )


def no_call_notice(format: ToolFormat | None) -> str:
    """Return what the policy is told after a turn without a call. format None: an API has a field for calls."""
    lines = ["No tool call was found in your reply, so nothing was run.", format.reminder if format else ""]
    if not (format and format.instructions):
        lines.append(f"The tools are {', '.join(_TOOLS)}; call submit when the work is done.")
    return "\n".join(filter(None, lines))


def fit(texts: Sequence[str], encode: Callable[[list[str]], S], room: int) -> S | None:
    """Return `encode(texts)`, with the texts cut as little as needed for at most `room` tokens; None if they don't fit
    even when cut.

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
    """Keep a text's first and last parts, `length` characters in all, with a marker that says how many are missing."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}\n[cut: {len(text) - length} characters]\n{text[len(text) - (length - head) :]}"


def load_template(checkpoint: str, chat_template: str = "", format: ToolFormat | None = None) -> ChatTemplate:
    """Load and prove a template with the native agent's tools: the checkpoint's, or what `model.chat_template` names.
    It has no tools where the format's instructions tell the tools.
    """
    in_prompt = format is not None and bool(format.instructions)
    tokenizer = load_tokenizer(checkpoint, chat_template)
    schemas = [] if in_prompt else SCHEMAS
    template = ChatTemplate(tokenizer, schemas, tool_messages=not in_prompt, eos_ids=eos_token_ids(checkpoint))
    template.prove()
    return template
