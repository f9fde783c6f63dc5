"""Tool formats: how a policy writes its tool calls as text. A new one is a file in this folder and a line here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from slime_swe.dotted import load_registered

# Short name -> dotted path of a `ToolFormat`. Any such path works as a name.
TOOL_FORMATS = {
    "hermes": "slime_swe.rollout.chat.hermes.HERMES",
    "qwen3_coder": "slime_swe.rollout.chat.qwen3_coder.QWEN3_CODER",
}

MAX_TURN = 1 << 19  # characters: parsing a turn is not to hold up the others for longer than 50 ms
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """The calls of a turn in order, up to the first malformed one; `error` says to the policy what is wrong with that.

    `text_before` is what was said before the first call, well-formed or not.
    """

    text_before: str
    calls: list[ToolCall]
    error: str | None = None


class MalformedCall(Exception):
    """Raised by the parser of one call."""


@dataclass(frozen=True)
class ToolFormat:
    """parse: a sampled turn's text; never raises. render: what the models write between the outer tags for a call."""

    parse: Callable[[str], ParsedTurn]
    render: Callable[[ToolCall], str]


def parse_calls(text: str, find: Callable[[int], int], parse_one: Callable[[int], tuple[ToolCall, int]]) -> ParsedTurn:
    """A turn's calls, in a time that grows with its length. `find` says where the next one starts after a place in the
    text, or -1; `parse_one` gives the call that starts somewhere, and where it ends, or raises `MalformedCall`."""
    calls: list[ToolCall] = []
    start = find(0)
    before = text if start < 0 else text[:start]
    if start >= 0 and len(text) > MAX_TURN:
        return ParsedTurn(before, [], f"a turn with tool calls must not have more than {MAX_TURN} characters")
    try:
        while start >= 0:
            call, end = parse_one(start)
            calls.append(call)
            start = find(end)
    except MalformedCall as error:
        return ParsedTurn(before, calls, str(error))
    return ParsedTurn(before, calls)


def skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, position
    return match.end()


@cache
def tool_format(name: str) -> ToolFormat:
    """The format of a name in `TOOL_FORMATS`, or at a dotted path. Raises `UserError`."""
    found: ToolFormat = load_registered(name, TOOL_FORMATS, "model.tool_format")
    return found


def parse(text: str, format: str) -> ParsedTurn:
    """The calls in `text`. Raises `UserError` for an unknown format."""
    return tool_format(format).parse(text)
