"""`ProxySession`: one episode as the proxy sees it. It places requests, samples replies, and keeps the budgets."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import orjson

from slime_swe.errors import UserError
from slime_swe.rollout.chat.template import SampledTurn
from slime_swe.rollout.chat.tool_formats import MalformedCall, ToolCall, parse
from slime_swe.rollout.client import MIN_REPLY, EngineClient, Generation, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Segment, Session, StopReason, call_of
from slime_swe.rollout.proxy.connections import Connection
from slime_swe.rollout.proxy.conversation import (
    Body,
    Dialect,
    GrowingReader,
    Message,
    MessageCall,
    ProxyError,
    Reply,
    Request,
)
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.proxy.tree import ConversationTree, Key, Placement, Prompt, Start, Turn
from slime_swe.rollout.replies import EngineError

MAX_TOO_LONG = 3  # prompts that don't fit, after which a client that has tried compaction would go on for ever
ID_BYTES = 12
KEY_BYTES = 24
MAX_BODY_BYTES = 8 << 20  # more than a million tokens
MOST_AT_ONCE = 64  # requests of one session under way, as many as its sandbox may have connections
MOST_BYTES_HELD = 32 << 20  # of the bodies of these
MOST_ABANDONED = 4096  # requests whose client went away while they were answered
MOST_COUNTS = 4096  # requests to count tokens
# What is larger, or comes beside more others, is parsed and tokenised in a thread, one request of a session at a time.
INLINE_BYTES = 16 << 10
INLINE_AT_ONCE = 4
INLINE_TOKENS = 16 << 10  # of a sampled turn, whose text is made on the spot: 6 ms where all are of the longest kind
MOST_CHARACTERS = 1_000_000  # that are new in one request: a quarter of a million tokens
MOST_TOOL_BYTES = 512 << 10  # agents have a tenth of it; a template is rendered with them many times to prove it
_CHARACTERS_OF_TOKEN = 16  # a text of more than these does not fit a context, and need not be tokenised to know
_CHARACTERS_OF_MESSAGE = 128  # what a message, or a call of one, costs beside its text, in the time of a character

T = TypeVar("T")
Finish = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True)
class Policy:
    """The engine that samples, and the model's templates. `model`: the name that clients are given."""

    client: EngineClient
    templates: Templates
    tool_format: str
    max_context: int
    max_turns: int
    model: str = "policy"
    routing_replay: bool = False
    threads: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 2, "proxy"))  # for large requests


@dataclass(eq=False)
class Arrival:
    """A request that was admitted, and what of it is known so far. It counts until it is answered or given up."""

    dialect: Dialect
    bytes_held: int = 0
    body: Body | None = None
    placed: Placement | None = None


@dataclass(eq=False)
class Answer:
    """A recorded reply. begun: some of it was written to a client. connections: those that all of it was written to,
    with the bytes that each had received before it was.
    """

    reply: Reply
    turn: Turn
    begun: bool = False
    connections: list[tuple[Connection, int]] = field(default_factory=list)
    repeated: bool = False

    @property
    def is_unread(self) -> bool:
        """True where no client has read all of it, as far as is known. A client that has read all that it wants may end
        its connection before the last bytes, as one does that was not reading: it gets the same answer but once more.
        """
        if not self.connections:
            return True
        return not self.repeated and all(connection.is_unread(received) for connection, received in self.connections)

    def give_again(self) -> None:
        self.repeated = self.repeated or bool(self.connections)
        self.connections.clear()

    def sent(self, connection: Connection | None, received: int) -> None:
        """Note a connection that it was all written to, None if that has ended, and the bytes received there before."""
        if connection is not None:
            self.connections.append((connection, received))


@dataclass(frozen=True)
class Spoken:
    """The policy's turn at a prompt of so many tokens; reasoning_tokens are among those that it sampled."""

    said: Message
    finish: Finish
    generation: Generation
    prompt_tokens: int
    reasoning_tokens: int


@dataclass(eq=False)
class ProxySession:
    """One episode: the record goes to `session`, the counts to `statistics`. `side_call` says which requests are not
    trained on.

    `ended` is why no further call is answered. `failure` is the engine's latest failure, None once it has answered
    again. A request changes the record once it was answered, and before that only the counts.
    """

    policy: Policy
    session: Session
    sampling: Sampling
    statistics: EpisodeStatistics
    side_call: Callable[[Request], bool] = lambda request: False
    id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(KEY_BYTES))
    ended: StopReason | None = None
    failure: EngineError | UserError | None = None
    asked: int = 0  # requests that have come
    abandoned: int = 0  # of these, those whose client went away before they were answered
    counted: int = 0  # requests to count tokens
    executed: int = 0  # of the policy's well-formed calls, those that have had a result
    full: bool = False  # the last prompt left no room for a reply
    overridden: Counter[str] = field(default_factory=Counter)  # sampling parameters that clients wanted otherwise

    def __post_init__(self) -> None:
        self._closed = False
        self._begun = 0
        self._too_long = 0
        self._at_once = 0
        self._bytes_held = 0
        self._heavy = asyncio.Lock()
        self._in_flight: dict[Key, _InFlight] = {}
        self._forget()

    def _forget(self) -> None:
        self.tree = ConversationTree(self.session, self.policy.templates)
        self._readers: dict[Dialect, GrowingReader] = {}
        self._answers: dict[Key, Answer] = {}  # the latest at each prompt, until the client goes on from it
        self._awaited: set[str] = set()  # ids of the calls that no result has come for

    @contextmanager
    def admit(self, dialect: Dialect, *, count: bool = False) -> Iterator[Arrival]:
        """Admit a request, before its body is read. Raises `ProxyError` where the session has had enough."""
        if self._at_once >= MOST_AT_ONCE:
            raise ProxyError("too_many", f"this session has {MOST_AT_ONCE} requests under way, the most allowed")
        if count:
            if self.counted >= MOST_COUNTS:
                raise ProxyError("too_many", f"this session has had its {MOST_COUNTS} counts of tokens")
            self.counted += 1
        else:
            self.asked += 1
        arrival = Arrival(dialect)
        self._at_once += 1
        try:
            yield arrival
        finally:
            self._at_once -= 1
            self._bytes_held -= arrival.bytes_held

    def hold(self, arrival: Arrival, size: int) -> None:
        """Count so many further bytes of a request's body. Raises `ProxyError` where they are too many."""
        if arrival.bytes_held + size > MAX_BODY_BYTES:
            raise ProxyError("too_large", f"a request may have {MAX_BODY_BYTES} bytes")
        if self._bytes_held + size > MOST_BYTES_HELD:
            raise ProxyError("too_many", f"the requests under way in a session may have {MOST_BYTES_HELD} bytes")
        arrival.bytes_held += size
        self._bytes_held += size

    async def place(self, arrival: Arrival, body: bytes) -> Request:
        """Parse a request, and find where it stands. Raises `ProxyError` where it can't be answered."""
        request = await self._read(arrival, body)
        self._note_results(request)
        self._require_open()
        try:
            placed = await self._placed(request)
        except ProxyError as error:
            if error.kind == "context_length":
                self._note_too_long()
            raise
        if placed.prompt.key not in self._in_flight and self._unread(placed.prompt.key) is None:
            self._require_room(placed.prompt)
        arrival.placed = placed
        return request

    async def count(self, arrival: Arrival, body: bytes) -> int:
        """Count the tokens of a request's prompt. Raises `ProxyError`."""
        request = await self._read(arrival, body)
        self._require_open()
        return (await self._placed(request)).prompt.node.end

    async def answer(self, arrival: Arrival) -> Answer:
        """Return what the policy says to a request that was placed. Raises `ProxyError` where the engine fails.

        A request that is repeated while it is being answered, or after an answer that was not read, is a retry: it gets
        the same answer. The sampling is cancelled when all who wait for it are.
        """
        placed = arrival.placed
        assert placed is not None, "the request was not placed"
        key = placed.prompt.key
        unread = self._unread(key)
        if unread is not None:
            unread.give_again()
            return unread
        if key not in self._in_flight:
            self._require_room(placed.prompt)
            self._in_flight[key] = _InFlight(asyncio.ensure_future(self._speak(arrival, placed)))
        sampling = self._in_flight[key]
        sampling.waiters += 1
        try:
            return await asyncio.shield(sampling.task)
        except (EngineError, UserError) as error:  # an endpoint's refusal is its user's to mend
            self.failure = error
            raise ProxyError("engine", str(error)) from error
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            sampling.waiters -= 1
            if not sampling.waiters:
                sampling.task.cancel()
                if self._in_flight.get(key) is sampling:
                    del self._in_flight[key]

    def history(self) -> dict[str, Any]:
        """Return the record, for orjson, which writes dataclasses as objects: the training sequences so far, the calls
        and their outcomes. A copy by `asdict` would take seconds of the event loop for the tokens of a long session.
        """
        return {
            "id": self.id,
            "turns": self.statistics.turns,
            "ended": self.ended and self.ended.value,
            "failure": str(self.failure) if self.failure else None,
            "segments": [_plain(segment) for segment in self.session.segments()],
            "tool_calls": dict(self.statistics.tool_calls),
            "tool_calls_executed": self.executed,
            "overridden": dict(self.overridden),
            "edited": [{"said": said, "echo": echo} for said, echo in self.tree.edited],
            "unmatched": [{"message": message, "nearest": nearest} for message, nearest in self.tree.unmatched],
        }

    def forget(self) -> None:
        """Clear the record. What the client still holds of it counts as context from now on."""
        self.session.clear()
        self.executed = 0
        self.failure = None  # the frames of its traceback have the record
        self._forget()

    def close(self) -> None:
        """Cancel the sampling in flight, and answer no further request. A turn that nobody saw is not trained: nothing
        that came after it was caused by it.
        """
        for sampling in self._in_flight.values():
            sampling.task.cancel()
        for answer in self._answers.values():
            if not answer.begun:
                self.session.leave_out(answer.turn.node)
        self._closed = True

    def _unread(self, key: Key) -> Answer | None:
        answer = self._answers.get(key)
        return answer if answer is not None and answer.is_unread else None

    async def _read(self, arrival: Arrival, body: bytes) -> Request:
        reader = self._reader(arrival.dialect)
        arrival.body = reader.look(body)
        if self._is_inline(arrival.body.news):
            return reader.parse(arrival.body)
        return await self._in_thread(reader.parse, arrival.body)

    async def _placed(self, request: Request) -> Placement:
        start = self.tree.start(request)
        if start.prompt is None and len(orjson.dumps(request.tools)) > MOST_TOOL_BYTES:
            raise ProxyError("too_large", f"tools: {MOST_TOOL_BYTES} bytes are allowed")
        new, known = _characters(request, start), start.prompt.node.end if start.prompt else 0
        if new > MOST_CHARACTERS:
            raise ProxyError("too_large", f"{new} new characters in one request, {MOST_CHARACTERS} are allowed")
        least = known + new // _CHARACTERS_OF_TOKEN
        if least > self.policy.max_context:
            raise self._too_long_for(f"at least {least}")
        work = new + _CHARACTERS_OF_MESSAGE * sum(1 + len(message.calls) for message in start.rest)
        if self._is_inline(work) and self.tree.is_proven(request, start):
            return self.tree.place(request, start)
        return await self._in_thread(self.tree.place, request, start)

    def _is_inline(self, size: int) -> bool:
        return size <= INLINE_BYTES and self._at_once <= INLINE_AT_ONCE

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in a thread, one of a session at a time, even if its client is gone: a thread can't be cancelled."""
        await self._heavy.acquire()
        working = asyncio.get_running_loop().run_in_executor(self.policy.threads, partial(work, *arguments))
        working.add_done_callback(self._worked)
        return await asyncio.shield(working)

    def _worked(self, working: asyncio.Future[Any]) -> None:
        self._heavy.release()
        if not working.cancelled():
            working.exception()  # was seen: its client may have gone

    def _reader(self, dialect: Dialect) -> GrowingReader:
        return self._readers.setdefault(dialect, GrowingReader(dialect))

    def _note_results(self, request: Request) -> None:
        """Count the results of calls, also in a request that is refused: the client has run these calls."""
        for message in reversed(request.messages):
            if not self._awaited:
                break
            if message.role == "tool" and message.call_id in self._awaited:
                self._awaited.discard(message.call_id)
                self.executed += 1

    def _require_open(self) -> None:
        if self.abandoned >= MOST_ABANDONED:
            self.ended = self.ended or StopReason.GAVE_UP
        if self._closed or self.ended is not None:
            raise ProxyError("not_found", f"this session has ended: {self.ended or 'its agent is gone'}")

    def _require_room(self, prompt: Prompt) -> None:
        """Require room for one more turn, and for a reply to this prompt. Raises `ProxyError`."""
        sampled = sum(not sampling.task.done() for sampling in self._in_flight.values())  # what is done is a turn
        if self.statistics.turns + sampled >= self.policy.max_turns:
            self.ended = StopReason.MAX_TURNS
            raise ProxyError("not_found", f"this session has had its {self.policy.max_turns} model calls")
        if prompt.node.end > self.policy.max_context - MIN_REPLY:
            self._note_too_long()
            raise self._too_long_for(f"{prompt.node.end}")

    def _note_too_long(self) -> None:
        self.full = True
        self._too_long += 1
        if self._too_long == MAX_TOO_LONG:
            self.ended = StopReason.CONTEXT_FULL

    def _too_long_for(self, tokens: str) -> ProxyError:
        most = self.policy.max_context - MIN_REPLY
        return ProxyError("context_length", f"prompt is too long: {tokens} tokens > {most} maximum")

    async def _speak(self, arrival: Arrival, placed: Placement) -> Answer:
        request, prompt, tree = placed.request, placed.prompt, self.tree
        began = self.session.seconds
        spoken = await self._spoken(request, prompt)
        said, generation = spoken.said, spoken.generation
        if self.tree is not tree:  # the record was cleared meanwhile
            placed = self.tree.place(request)
        known = generation.routed_experts is None or generation.experts_from == placed.prompt.node.experts_end
        train = known and not self.side_call(request)
        recorded = self.tree.record(placed, said, generation, train=train, began=began)
        if arrival.body is not None:
            self._reader(arrival.dialect).keep(arrival.body, request)
        self._forget_answer(recorded.at.after)
        reply = Reply(
            id=secrets.token_hex(ID_BYTES),
            model=self.policy.model,
            text=said.text,
            calls=said.calls,
            finish=spoken.finish,
            prompt_tokens=spoken.prompt_tokens,
            completion_tokens=generation.completion_tokens,
            cached_tokens=generation.cached_tokens,
            created=int(time.time()),
            reasoning=said.reasoning,
            reasoning_tokens=spoken.reasoning_tokens,
        )
        answer = self._answers[prompt.key] = Answer(reply, recorded)
        return answer

    def _forget_answer(self, turn: Turn | None) -> None:
        """Forget the answer of a turn that the client has gone on from, and so has seen."""
        if turn is not None and turn.at.key in self._answers and self._answers[turn.at.key].turn is turn:
            del self._answers[turn.at.key]

    async def _spoken(self, request: Request, prompt: Prompt) -> Spoken:
        """Sample what the policy says. Raises `EngineError`."""
        generation, turn = await self._sample(request, prompt)
        said, finish = self._parse(request, generation, turn)
        return Spoken(said, finish, generation, prompt.node.end, turn.reasoning_tokens)

    async def _sample(self, request: Request, prompt: Prompt) -> tuple[Generation, SampledTurn]:
        params = self._params(request, prompt)
        ids = prompt.node.encoded_path()
        experts_from = prompt.node.experts_end if self.policy.routing_replay else None
        with self.statistics.engine_time():
            generation = await self.policy.client.generate(
                ids, params, experts_from=experts_from, headers=self.sampling.headers
            )
        turn = await self._read_turn(generation.tokens)  # before it counts: until it is recorded, it is in flight
        self.failure, self.full = None, False
        self.statistics.add(generation, prompt.node)
        self.statistics.unkept_turns += not turn.kept
        return generation, turn

    async def _read_turn(self, tokens: list[int]) -> SampledTurn:
        read = self.policy.templates.read
        return read(tokens) if len(tokens) <= INLINE_TOKENS else await self._in_thread(read, tokens)

    def _params(self, request: Request, prompt: Prompt) -> Mapping[str, Any]:
        room = self.policy.max_context - prompt.node.end
        params = self.sampling.for_turn(self._begun, room, self.policy.templates.stop_token_ids)
        wanted = {name: value for name, value in request.sampling.items() if value is not None}
        self.overridden.update(name for name, value in wanted.items() if params.get(name) != value)
        if request.max_tokens is not None:
            params["max_new_tokens"] = max(1, min(params["max_new_tokens"], request.max_tokens))
        self._begun += 1
        return params

    def _parse(self, request: Request, generation: Generation, turn: SampledTurn) -> tuple[Message, Finish]:
        """Return what a client is given: a malformed call as a call too, as clients handle it. A client that offered no
        tools gets plain text.
        """
        cut = generation.finish_reason == "length"
        parsed = parse(turn.content, self.policy.tool_format, request.tools)
        if not parsed.written or not request.tools:
            return Message("assistant", turn.content, reasoning=turn.reasoning), "length" if cut else "stop"
        self.statistics.malformed_calls += sum(isinstance(call, MalformedCall) for call in parsed.written)
        calls = tuple(message_call(call) for call in parsed.written)
        pairs = zip(parsed.written, calls, strict=True)
        well_formed = [given for call, given in pairs if isinstance(call, ToolCall)]
        self._count(well_formed)
        cut = cut and isinstance(parsed.written[-1], MalformedCall)
        said = Message("assistant", parsed.text_before.strip(), calls, reasoning=turn.reasoning)
        return said, "length" if cut else "tool_calls"

    def _count(self, well_formed: Sequence[MessageCall]) -> None:
        """Count calls that the client will run."""
        self.statistics.tool_calls.update(call.name for call in well_formed)
        self._awaited |= {call.id for call in well_formed}


@dataclass(eq=False)
class _InFlight:
    """A reply being sampled, and how many wait for it."""

    task: asyncio.Task[Answer]
    waiters: int = 0


def _plain(segment: Segment) -> dict[str, Any]:
    table = base64.b64encode(b"".join(segment.routed_experts)).decode()
    return {**vars(segment), "routed_experts": table or None, "turns": msgspec.to_builtins(segment.turns)}


def _characters(request: Request, start: Start) -> int:
    """Count the characters of a request that have to be looked at to place it."""
    texts = sum(len(one.text) + sum(len(call.arguments) for call in one.calls) for one in start.rest)
    return texts + (0 if start.prompt else len(orjson.dumps(request.tools)))


def message_call(call: ToolCall | MalformedCall) -> MessageCall:
    """Return a call as clients get it, under an id of ours."""
    written = call_of(call, f"call_{secrets.token_hex(ID_BYTES)}")
    return MessageCall(written.id, written.name, written.arguments)
