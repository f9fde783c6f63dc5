"""Qwen3-Coder tool calls: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

All values are strings, without the one newline that the format puts on either side of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from slime_swe.rollout.chat.tool_formats import MalformedCall, ParsedTurn, ToolCall, ToolFormat

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


def parse_qwen3_coder(text: str) -> ParsedTurn:
    """The turn's calls. As in the models' own output, the outer `<tool_call>` tags may be missing."""
    calls: list[ToolCall] = []
    start = _first(text, _OPEN, _FUNCTION)
    before = text if start < 0 else text[:start]
    if start < 0 and _END_FUNCTION in text:
        return ParsedTurn(before, [], f"{_END_FUNCTION} without {_FUNCTION}name>")
    try:
        while start >= 0:
            call, end = _parse_one(text, start)
            calls.append(call)
            start = _first(text, _OPEN, _FUNCTION, after=end)
    except MalformedCall as error:
        return ParsedTurn(before, calls, str(error))
    return ParsedTurn(before, calls)


def render_qwen3_coder(call: ToolCall) -> str:
    """What the models write between the outer tags for this call; values that are no strings are given as JSON."""
    return "\n".join([f"{_FUNCTION}{call.name}>", *_parameters(call), _END_FUNCTION])


def _parameters(call: ToolCall) -> Iterator[str]:
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{_PARAMETER}{key}>\n{text}\n{_END_PARAMETER}"


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    wrapped = text.startswith(_OPEN, start)
    position = _skip_space(text, start + len(_OPEN)) if wrapped else start
    name, position = _tag(text, position, _FUNCTION)
    arguments: dict[str, str] = {}
    position = _skip_space(text, position)
    while text.startswith(_PARAMETER, position):
        key, position = _tag(text, position, _PARAMETER)
        if key in arguments:
            raise MalformedCall(f"parameter {key!r} is given twice")
        end = text.find(_END_PARAMETER, position)
        if end < 0:
            raise MalformedCall(f"parameter {key!r} does not end in {_END_PARAMETER}")
        arguments[key] = _unwrap(text[position:end])
        position = _skip_space(text, end + len(_END_PARAMETER))
    position = _expect(text, position, _END_FUNCTION)
    return ToolCall(name, arguments), _expect(text, position, _CLOSE) if wrapped else position


def _tag(text: str, position: int, opening: str) -> tuple[str, int]:
    """The name in `<function=NAME>` or `<parameter=NAME>`, and where the tag ends."""
    if not text.startswith(opening, position):
        raise MalformedCall(f"expected {opening}name> but found {text[position : position + 20]!r}")
    end = text.find(">", position)
    name = text[position + len(opening) : end].strip() if end >= 0 else ""
    if not name or "\n" in name or "<" in name:
        raise MalformedCall(f"{opening}name> has no proper name")
    return name, end + 1


def _expect(text: str, position: int, tag: str) -> int:
    position = _skip_space(text, position)
    if not text.startswith(tag, position):
        raise MalformedCall(f"expected {tag} but found {text[position : position + 20]!r}")
    return position + len(tag)


def _unwrap(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _first(text: str, *needles: str, after: int = 0) -> int:
    found = [position for needle in needles if (position := text.find(needle, after)) >= 0]
    return min(found, default=-1)


QWEN3_CODER = ToolFormat(parse_qwen3_coder, render_qwen3_coder)
