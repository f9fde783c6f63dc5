"""What the proxy's protocols share: a request with its messages, a reply, and an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

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
    """What a client asks for, whatever its protocol.

    tools: function schemas as chat templates take them, {"type": "function", "function": {"name", "description",
    "parameters"}}. max_tokens: of the reply, None if the client does not say. sampling: the client's other sampling
    parameters, by its own names; the run's settings win. wire: whatever the protocol's module needs for its reply.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    wire: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the policy said, parsed. `id` and the ids of `calls` are unique, since clients merge items of one id.

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


class Wire(Protocol):
    """One protocol: bytes in, bytes out; knows nothing of sessions or engines.

    A reply to a streaming request is `opening`, any number of `keep_alive`s while the policy samples, and then
    `events`, or `failed` if sampling fails after the opening was sent.
    """

    head: bytes  # of a body that holds messages and nothing else: up to the first of them

    def parse(self, body: bytes) -> Request:
        """Raises `ProxyError` (invalid_request) for whatever the protocol, or a text-only model, does not take."""
        ...

    def reply(self, request: Request, reply: Reply) -> bytes:
        """The JSON body of a reply that is not streamed."""
        ...

    def opening(self, request: Request, reply_id: str, created: int) -> bytes: ...

    def keep_alive(self, request: Request, reply_id: str, created: int) -> bytes: ...

    def events(self, request: Request, reply: Reply) -> Iterator[bytes]:
        """The server-sent events after the opening, in the pieces that a streaming client expects."""
        ...

    def failed(self, error: ProxyError, reply_id: str) -> bytes:
        """The protocol's event of an error within a stream that has begun, as that of the reply which it opened."""
        ...

    def error(self, error: ProxyError) -> bytes:
        """The JSON body of an error."""
        ...


def sse_event(data: Any, name: str = "") -> bytes:
    """One server-sent event."""
    body = orjson.dumps(data)
    for end, escape in _LINE_ENDS.items():
        body = body.replace(end.encode(), escape)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + body + b"\n\n"


def sse_pieces(text: str) -> Iterator[str]:
    """The parts that a reply's text is streamed in."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
