"""`GrowingReader`: parses of each request only what its client has added to the previous one.

A client that only appends sends the same bytes again, with further messages inserted in one place. If two bodies differ
in nothing else, the later one's history is the earlier one's and the parsed addition. So the cost of a turn depends on
what is new, and not on the context.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.rollout.proxy.conversation import ProxyError, Request, Wire


class GrowingReader:
    """Reads one session's requests in one protocol."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last: tuple[bytes, Request] | None = None
        self._rest = b""  # what stands after the messages, as the last two bodies have it; empty: not known

    def parse(self, body: bytes) -> Request:
        """The request, as the wire itself parses it. Raises `ProxyError`."""
        request = self._grown(body)
        if request is None:
            request = self._wire.parse(body)
            self._rest = b"" if self._last is None else _rest(*self._last, body, request)
        self._last = body, request
        return request

    def _grown(self, body: bytes) -> Request | None:
        """The request, where the body is the last one with more messages; None where that is not certain."""
        if self._last is None or not self._rest:
            return None
        before, earlier = self._last
        end = len(before) - len(self._rest)
        if len(body) <= len(before) or not body.endswith(self._rest) or body[end : end + 1] != b",":
            return None
        if not body.startswith(memoryview(before)[:end]):  # bytes would be copied first
            return None
        added = body[end + 1 : len(body) - len(self._rest)]
        try:
            more = self._wire.parse(self._wire.head + added + b"]}")
        except ProxyError:  # parsed whole, it gets an error that names the place
            return None
        return replace(earlier, messages=earlier.messages + more.messages)


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
