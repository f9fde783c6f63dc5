"""`GrowingReader`: parses of each request only what its client has added to the previous one.

A client that only appends sends the same bytes again, with further messages inserted in one place. If two bodies differ
in nothing else, the later one's history is the earlier one's and the parsed addition. So the cost of a turn depends on
what is new, and not on the context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slime_swe.rollout.proxy.conversation import ProxyError, Request, Wire


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
        """How many bytes have to be parsed."""
        return len(self.whole if self.added is None else self.added)


class GrowingReader:
    """Reads one session's requests in one protocol."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._kept: Kept | None = None

    def look(self, body: bytes) -> Body:
        return Body(body, self._kept, _added(self._kept, body) if self._kept else None)

    def parse(self, body: Body) -> Request:
        """The request, as the wire itself parses it. Another thread may do this. Raises `ProxyError`."""
        if body.before is None or body.added is None:
            return self._wire.parse(body.whole)
        try:
            more = self._wire.parse(self._wire.head + body.added + b"]}")
        except ProxyError:  # parsed whole, it gets an error that names the place
            return self._wire.parse(body.whole)
        earlier = body.before.request
        return replace(earlier, messages=earlier.messages + more.messages)

    def keep(self, body: Body, request: Request) -> None:
        """The request was answered: the next one may go on from it."""
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
    return body[end + 1 : len(body) - len(rest)]


def _rest(before: bytes, earlier: Request, body: bytes, request: Request) -> bytes:
    """What follows the messages in both bodies, from the bracket on; empty if more than the messages differs."""
    at = _common(before, body)
    rest = before[at:]
    count = len(earlier.messages)
    grown = len(request.messages) > count and replace(request, messages=request.messages[:count]) == earlier
    inside = rest.startswith(b"]") and body[at : at + 1] == b"," and not before[:at].rstrip().endswith(b"[")
    return rest if grown and inside and body.endswith(rest) else b""


def _common(one: bytes, other: bytes) -> int:
    """The length of the common prefix, in bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
