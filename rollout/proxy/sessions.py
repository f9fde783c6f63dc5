"""`ProxySession`: one episode as the proxy sees it. It places requests, samples replies, and keeps the budgets."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

from slime_swe.rollout.chat.tool_formats import MalformedCall, ToolCall, parse
from slime_swe.rollout.client import MIN_REPLY, EngineClient, EngineError, Generation, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, StopReason
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Reply, Request, Wire
from slime_swe.rollout.proxy.growing import GrowingReader
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.proxy.tree import ConversationTree, Prompt
from slime_swe.rollout.session import Session

MAX_TOO_LONG = 3  # prompts that don't fit, after which a client that has tried compaction would go on for ever
ID_BYTES = 12
UNNAMED = "unnamed_tool"
_NO_TEXT = frozenset({"integer", "number", "boolean", "array", "object", "null"})
KEY_BYTES = 24


@dataclass(frozen=True)
class Policy:
    """What samples: the engine, and the model's templates. `model`: the name that clients are given."""

    client: EngineClient
    templates: Templates
    tool_format: str
    max_context: int
    max_turns: int
    model: str = "policy"
    routing_replay: bool = False


@dataclass(eq=False)
class ProxySession:
    """One episode: the record goes to `session`, the counts to `statistics`. `side_call` says which requests are not
    trained on.

    `ended` is why no further call is answered. `failure` is the engine's latest failure, None once it has answered
    again.
    """

    policy: Policy
    session: Session
    sampling: Sampling
    statistics: EpisodeStatistics
    side_call: Callable[[Request], bool] = lambda request: False
    id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(KEY_BYTES))
    ended: StopReason | None = None
    failure: EngineError | None = None
    asked: int = 0  # requests that have come
    full: bool = False  # the last prompt left no room for a reply
    overridden: Counter[str] = field(default_factory=Counter)  # sampling parameters that clients wanted otherwise
    answered: set[str] = field(default_factory=set)  # ids of the calls whose results have come

    def __post_init__(self) -> None:
        self.tree = ConversationTree(self.session, self.policy.templates)
        self._readers: dict[Wire, GrowingReader] = {}
        self._in_flight: dict[Prompt, _InFlight] = {}
        self._undelivered: dict[Prompt, Reply] = {}
        self._begun = 0
        self._closed = False
        self._too_long = 0

    def read(self, wire: Wire, body: bytes) -> Request:
        """Parse a request. Raises `ProxyError`."""
        if wire not in self._readers:
            self._readers[wire] = GrowingReader(wire)
        return self._readers[wire].parse(body)

    def place(self, request: Request) -> Prompt:
        """Where a request stands. Raises `ProxyError` where it can't be answered."""
        if self._closed or self.ended is not None:
            raise ProxyError("not_found", f"this session has ended: {self.ended or 'its agent is gone'}")
        self.asked += 1
        prompt = self.tree.place(request)
        if prompt not in self._in_flight and prompt not in self._undelivered:
            self._require_room(prompt)
        self._note_results(request)
        return prompt

    async def answer(self, request: Request, prompt: Prompt) -> Reply:
        """What the policy says at a prompt. Raises `ProxyError` where the engine fails.

        A request that is repeated while it is being answered, or after an answer that did not reach the client, is a
        retry: it gets the same answer. The sampling is cancelled when all who wait for it are.
        """
        if prompt in self._undelivered:
            return self._undelivered[prompt]
        if prompt not in self._in_flight:
            self._require_room(prompt)
            self._in_flight[prompt] = _InFlight(asyncio.ensure_future(self._speak(request, prompt)))
        sampling = self._in_flight[prompt]
        sampling.waiters += 1
        try:
            return await asyncio.shield(sampling.task)
        except EngineError as error:
            self.failure = error
            raise ProxyError("engine", str(error)) from error
        finally:
            sampling.waiters -= 1
            if not sampling.waiters:
                sampling.task.cancel()
                if self._in_flight.get(prompt) is sampling:
                    del self._in_flight[prompt]

    def delivered(self, prompt: Prompt) -> None:
        """The client has the answer. If it asks the same again, it gets another."""
        self._undelivered.pop(prompt, None)

    @property
    def executed(self) -> int:
        """How many of the policy's calls have had a result."""
        return len(self.answered & self.tree.calls)

    def history(self) -> dict[str, Any]:
        """The record as plain JSON types: the training sequences so far, the calls and their outcomes."""
        return {
            "id": self.id,
            "turns": self.statistics.turns,
            "ended": self.ended and self.ended.value,
            "failure": str(self.failure) if self.failure else None,
            "segments": [asdict(segment) for segment in self.session.segments()],
            "tool_calls": dict(self.statistics.tool_calls),
            "tool_calls_executed": self.executed,
            "overridden": dict(self.overridden),
            "edited": [{"said": asdict(said), "echo": asdict(echo)} for said, echo in self.tree.edited],
            "unmatched": [
                {"message": asdict(message), "nearest": nearest and asdict(nearest)}
                for message, nearest in self.tree.unmatched
            ],
        }

    def forget(self) -> None:
        """Clear the record. What the client still holds of it counts as context from now on."""
        self.session.clear()
        self.tree = ConversationTree(self.session, self.policy.templates)
        self._undelivered.clear()

    def close(self) -> None:
        """Cancel the sampling in flight, and answer no further request."""
        for sampling in self._in_flight.values():
            sampling.task.cancel()
        self._closed = True

    def _note_results(self, request: Request) -> None:
        for message in reversed(request.messages):
            if message.role == "tool":
                if message.call_id in self.answered:
                    return  # and so are those before it
                self.answered.add(message.call_id)

    def _require_room(self, prompt: Prompt) -> None:
        """For one more turn, and for a reply to this prompt."""
        if self.statistics.turns + len(self._in_flight) >= self.policy.max_turns:
            self.ended = StopReason.MAX_TURNS
            raise ProxyError("not_found", f"this session has had its {self.policy.max_turns} model calls")
        most = self.policy.max_context - MIN_REPLY
        if prompt.node.end > most:
            self.full = True
            self._too_long += 1
            if self._too_long == MAX_TOO_LONG:
                self.ended = StopReason.CONTEXT_FULL
            raise ProxyError("context_length", f"prompt is too long: {prompt.node.end} tokens > {most} maximum")

    async def _speak(self, request: Request, prompt: Prompt) -> Reply:
        generation = await self._sample(request, prompt)
        said, finish = self._parse(request, generation)
        self.tree.record(prompt, said, generation, train=not self.side_call(request))
        self._undelivered[prompt] = Reply(
            id=secrets.token_hex(ID_BYTES),
            model=self.policy.model,
            text=said.text,
            calls=said.calls,
            finish=finish,
            prompt_tokens=prompt.node.end,
            completion_tokens=len(generation.tokens),
            cached_tokens=generation.cached_tokens,
            created=int(time.time()),
        )
        return self._undelivered[prompt]

    async def _sample(self, request: Request, prompt: Prompt) -> Generation:
        params = self._params(request, prompt)
        ids = prompt.node.encoded_path()
        with self.statistics.engine_time():
            generation = await self.policy.client.generate(
                ids, params, routed_experts=self.policy.routing_replay, headers=self.sampling.headers
            )
        self.failure, self.full = None, False
        self.statistics.add(generation)
        return generation

    def _params(self, request: Request, prompt: Prompt) -> Mapping[str, Any]:
        room = self.policy.max_context - prompt.node.end
        params = self.sampling.for_turn(self._begun, room, self.policy.templates.stop_token_ids)
        wanted = {name: value for name, value in request.sampling.items() if value is not None}
        self.overridden.update(name for name, value in wanted.items() if params.get(name) != value)
        if request.max_tokens is not None:
            params["max_new_tokens"] = max(1, min(params["max_new_tokens"], request.max_tokens))
        self._begun += 1
        return params

    def _parse(
        self, request: Request, generation: Generation
    ) -> tuple[Message, Literal["stop", "tool_calls", "length"]]:
        """What a client is given: a malformed call as a call too, as clients handle it. A client that offered no tools
        gets plain text.
        """
        text = self.policy.templates.decode(generation.tokens)
        cut = generation.finish_reason == "length"
        parsed = parse(text, self.policy.tool_format)
        if not parsed.written or not request.tools:
            return Message("assistant", text), "length" if cut else "stop"
        self.statistics.malformed_calls += sum(isinstance(call, MalformedCall) for call in parsed.written)
        self.statistics.tool_calls.update(call.name for call in parsed.written if isinstance(call, ToolCall))
        calls = tuple(message_call(call, request.tools) for call in parsed.written)
        cut = cut and isinstance(parsed.written[-1], MalformedCall)
        return Message("assistant", parsed.text_before.strip(), calls), "length" if cut else "tool_calls"


@dataclass(eq=False)
class _InFlight:
    """A reply being sampled, and how many wait for it."""

    task: asyncio.Task[Reply]
    waiters: int = 0


def message_call(call: ToolCall | MalformedCall, tools: Sequence[Mapping[str, Any]]) -> MessageCall:
    """A call as clients get it, under an id of ours.

    Arguments that can't be read are the text that the policy wrote. A call without a name is named `UNNAMED`: no client
    has such a tool, and some drop a call that has no name.
    """
    name = call.name.encode("utf-8", "replace").decode() or UNNAMED  # JSON can spell half a surrogate pair
    written = call.arguments
    arguments = written if isinstance(written, str) else arguments_json(name, written, tools)
    return MessageCall(f"call_{secrets.token_hex(ID_BYTES)}", name, arguments)


def arguments_json(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """The arguments of a call as JSON text, with the types that the tool's schema names.

    If the model's format has only text (Qwen3-Coder's), values of other types than text are read as JSON.
    """
    known = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    properties = known.get(name, {}).get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    values = {key: _typed(value, properties.get(key)) for key, value in arguments.items()}
    try:
        return orjson.dumps(values).decode()
    except (orjson.JSONEncodeError, RecursionError):  # numbers beyond 64 bits
        return json.dumps(values)


def _typed(value: Any, schema: Any) -> Any:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(value, str) or not isinstance(wanted, str) or wanted not in _NO_TEXT:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
