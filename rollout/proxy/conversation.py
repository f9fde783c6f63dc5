"""What the proxy's protocols share: a request with its messages, a reply, and an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import orjson

from slime_swe.rollout.episode import Call, Turn

PIECE = 256  # characters of text in one event
# Clients that read lines as Python does end one at these, which JSON need not escape.
_LINE_ENDS = {"\x85": rb"\u0085", "\u2028": rb"\u2028", "\u2029": rb"\u2029"}
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class MessageCall:
    """One tool call. `id` is empty where the client has none; `arguments` is JSON text, as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message of a client's history, its parts joined, or what the policy said.

    `calls` are an assistant's; `call_id` says which call a tool's message answers. `reasoning` is the policy's: that of
    a client's history is not read, as a recorded turn has its own.
    """

    role: Role
    text: str
    calls: tuple[MessageCall, ...] = ()
    call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True)
class Request:
    """A client's request, whatever its protocol.

    tools: function schemas as chat templates take them, {"type": "function", "function": {"name", "description",
    "parameters"}}. max_tokens: of the reply, None if the client does not say. sampling: the client's other sampling
    parameters, by its own names; the run's settings win. context: whatever the protocol's module needs for its reply.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """The policy's turn, parsed. `id` and the ids of `calls` are unique, since clients merge items of one id.

    finish: `length` if the reply was cut at its token limit. Token counts are the engine's; reasoning_tokens are among
    the completion's.
    """

    id: str
    model: str
    text: str
    calls: tuple[MessageCall, ...]
    finish: Literal["stop", "tool_calls", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    created: int = 0  # Unix time, seconds
    reasoning: str = ""
    reasoning_tokens: int = 0


Kind = Literal["invalid_request", "context_length", "authentication", "not_found", "too_large", "too_many", "engine"]
STATUS: Mapping[Kind, int] = {
    "invalid_request": 400,
    "context_length": 400,
    "authentication": 401,
    "not_found": 404,
    "too_large": 413,
    "too_many": 429,
    "engine": 503,
}


class ProxyError(Exception):
    """An error that the client gets in its protocol's own form. The message says what was given and what is allowed."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    @property
    def status(self) -> int:
        return STATUS[self.kind]


class Dialect(Protocol):
    """One protocol: bytes in, bytes out. It knows nothing of sessions or engines.

    A reply to a streaming request is `opening`, any number of `keep_alive`s while the policy samples, and then
    `events`, or `failed` if sampling fails after the opening was sent.
    """

    head: bytes  # of a body that holds messages and nothing else: up to the first of them

    def parse(self, body: bytes) -> Request:
        """Parse a body. Raises `ProxyError` (invalid_request) for what the protocol, or a text-only model, does not
        take.
        """
        ...

    def reply(self, request: Request, reply: Reply) -> bytes:
        """Return the JSON body of a reply that is not streamed."""
        ...

    def opening(self, request: Request, reply_id: str, created: int) -> bytes: ...

    def keep_alive(self, request: Request, reply_id: str, created: int) -> bytes: ...

    def events(self, request: Request, reply: Reply) -> Iterator[bytes]:
        """Yield the server-sent events after the opening, in the pieces that a streaming client expects."""
        ...

    def failed(self, error: ProxyError, reply_id: str) -> bytes:
        """Return the event of an error within a stream that has begun, as that of the reply which it opened."""
        ...

    def error(self, error: ProxyError) -> bytes:
        """Return the JSON body of an error."""
        ...


def sse_event(data: Any, name: str = "") -> bytes:
    """Encode one server-sent event."""
    body = orjson.dumps(data)
    for end, escape in _LINE_ENDS.items():
        body = body.replace(end.encode(), escape)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + body + b"\n\n"


def sse_pieces(text: str) -> Iterator[str]:
    """Yield the parts that a reply's text is streamed in."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


# `GrowingReader`: parses of each request only what its client has added to the previous one.
#
# A client that only appends sends the same bytes again, with further messages inserted in one place. If two bodies
# differ in nothing else, the later one's history is the earlier one's and the parsed addition. So the cost of a turn
# depends on what is new, and not on the context.
_REFERENCE = b'"tool_reference"'  # Anthropic's, to one of the body's deferred tools, which no addition has


@dataclass(frozen=True)
class Kept:
    """The latest request that was answered. `rest`: what stands after its messages, as the one before it has it too;
    empty: not known.
    """

    body: bytes
    request: Request
    rest: bytes


@dataclass(frozen=True)
class Body:
    """A request's bytes. `added`: what they add to the messages of `before`; None where that may not be all."""

    whole: bytes
    before: Kept | None
    added: bytes | None

    @property
    def news(self) -> int:
        """The number of bytes that have to be parsed."""
        return len(self.whole if self.added is None else self.added)


class GrowingReader:
    """A reader of one session's requests in one protocol."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kept: Kept | None = None

    def look(self, body: bytes) -> Body:
        return Body(body, self._kept, _added(self._kept, body) if self._kept else None)

    def parse(self, body: Body) -> Request:
        """Parse a request as the dialect itself does. Another thread may do this. Raises `ProxyError`."""
        if body.before is None or body.added is None:
            return self._dialect.parse(body.whole)
        try:
            more = self._dialect.parse(self._dialect.head + body.added + b"]}")
        except ProxyError:  # parsed whole, it gets an error that names the place
            return self._dialect.parse(body.whole)
        earlier = body.before.request
        return replace(earlier, messages=earlier.messages + more.messages)

    def keep(self, body: Body, request: Request) -> None:
        """Keep a request that was answered: the next one may go on from it."""
        before = body.before
        if before is None:
            rest = b""
        elif body.added is not None:
            rest = before.rest
        else:
            rest = _rest(before.body, before.request, body.whole, request)
        self._kept = Kept(body.whole, request, rest)


def _added(kept: Kept, body: bytes) -> bytes | None:
    before, rest = kept.body, kept.rest
    end = len(before) - len(rest)
    if not rest or len(body) <= len(before) or not body.endswith(rest) or body[end : end + 1] != b",":
        return None
    if not body.startswith(memoryview(before)[:end]):  # bytes would be copied first
        return None
    added = body[end + 1 : len(body) - len(rest)]
    return None if _REFERENCE in added else added


def _rest(before: bytes, earlier: Request, body: bytes, request: Request) -> bytes:
    """Return what follows the messages in both bodies, from the bracket on; empty if more than the messages differs."""
    at = _common(before, body)
    rest = before[at:]
    count = len(earlier.messages)
    grown = len(request.messages) > count and replace(request, messages=request.messages[:count]) == earlier
    inside = rest.startswith(b"]") and body[at : at + 1] == b"," and not before[:at].rstrip().endswith(b"[")
    return rest if grown and inside and body.endswith(rest) else b""


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix, in bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def chat_message(turn: Turn) -> dict[str, Any]:
    """Convert a turn to a message of OpenAI's chat API."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_call(call) for call in turn.calls]
    if turn.call_id:
        message["tool_call_id"] = turn.call_id
    return message


# Levels of lists and objects: formats' writers and readers take 200 (pydantic) or 254 (orjson), those around included.
_DEEPEST = 100


def read_arguments(call: Call | MessageCall) -> dict[str, Any] | None:
    """Read the arguments by name; None where the policy wrote something else, or nested them over 100 levels deep."""
    try:
        found = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and _fits(found, _DEEPEST) else None


def _fits(value: Any, levels: int) -> bool:
    """Say whether lists and objects are nested no deeper than so many levels."""
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits(inner, levels - 1) for inner in inside)


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
