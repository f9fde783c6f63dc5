"""`GrowingReader`: parses of each request only what its client has added to the previous one.

A client that only appends sends the same bytes again, with further messages inserted in one place. If two bodies differ
in nothing else, the later one's history is the earlier one's and the parsed addition. So the cost of a turn depends on
what is new, and not on the context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slime_swe.rollout.proxy.conversation import ProxyError, Request, Wire


@dataclass(frozen=True)
class _Read:
    """`rest`: what stands after the messages, as the last two bodies have it; empty: not known."""

    body: bytes
    request: Request
    rest: bytes

    def added(self, body: bytes) -> bytes | None:
        """What a body adds to this one's messages; None where it is not certain that this is all."""
        before, rest = self.body, self.rest
        end = len(before) - len(rest)
        if not rest or len(body) <= len(before) or not body.endswith(rest) or body[end : end + 1] != b",":
            return None
        if not body.startswith(memoryview(before)[:end]):  # bytes would be copied first
            return None
        return body[end + 1 : len(body) - len(rest)]


class GrowingReader:
    """Reads one session's requests in one protocol. Only those that are kept, once they are answered, change it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last: _Read | None = None

    def news(self, body: bytes) -> int:
        """How many bytes have to be parsed."""
        added = self._last.added(body) if self._last else None
        return len(body if added is None else added)

    def parse(self, body: bytes) -> Request:
        """The request, as the wire itself parses it. Another thread may do this. Raises `ProxyError`."""
        last = self._last
        added = last.added(body) if last else None
        if last is None or added is None:
            return self._wire.parse(body)
        try:
            more = self._wire.parse(self._wire.head + added + b"]}")
        except ProxyError:  # parsed whole, it gets an error that names the place
            return self._wire.parse(body)
        return replace(last.request, messages=last.request.messages + more.messages)

    def keep(self, body: bytes, request: Request) -> None:
        """The next request may go on from this one."""
        last = self._last
        if last is None:
            rest = b""
        elif last.added(body) is not None:
            rest = last.rest
        else:
            rest = _rest(last.body, last.request, body, request)
        self._last = _Read(body, request, rest)


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
