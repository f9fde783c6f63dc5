"""Qwen3-Coder tool calls: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

All values are strings, without the one newline that the format puts on either side of them.
"""

from __future__ import annotations

import json
import re
from functools import partial

from slime_swe.rollout.chat.hermes import CLOSE, OPEN
from slime_swe.rollout.chat.tool_formats import MalformedCall, ParsedTurn, ToolCall, ToolFormat, parse_calls, skip_space

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_EITHER = re.compile(f"{re.escape(OPEN)}|{re.escape(_FUNCTION)}")


def parse_qwen3_coder(text: str) -> ParsedTurn:
    """The turn's calls. As in the models' own output, the outer `<tool_call>` tags may be missing."""
    if _END_FUNCTION in text and _find(text, 0) < 0:
        return ParsedTurn(text, [], f"{_END_FUNCTION} without {_FUNCTION}name>")
    return parse_calls(text, partial(_find, text), partial(_parse_one, text))


def render_qwen3_coder(call: ToolCall) -> str:
    """What the models write between the outer tags for this call; values that are no strings are given as JSON."""
    lines = [f"{_FUNCTION}{call.name}>"]
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{_PARAMETER}{key}>\n{text}\n{_END_PARAMETER}")
    return "\n".join([*lines, _END_FUNCTION])


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    wrapped = text.startswith(OPEN, start)
    position = skip_space(text, start + len(OPEN)) if wrapped else start
    name, position = _tag(text, position, _FUNCTION)
    arguments: dict[str, str] = {}
    position = skip_space(text, position)
    while text.startswith(_PARAMETER, position):
        key, position = _tag(text, position, _PARAMETER)
        if key in arguments:
            raise MalformedCall(f"parameter {key!r} is given twice")
        end = text.find(_END_PARAMETER, position)
        if end < 0:
            raise MalformedCall(f"parameter {key!r} does not end in {_END_PARAMETER}")
        arguments[key] = text[position:end].removeprefix("\n").removesuffix("\n")
        position = skip_space(text, end + len(_END_PARAMETER))
    position = _expect(text, position, _END_FUNCTION)
    return ToolCall(name, arguments), _expect(text, position, CLOSE) if wrapped else position


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
    position = skip_space(text, position)
    if not text.startswith(tag, position):
        raise MalformedCall(f"expected {tag} but found {text[position : position + 20]!r}")
    return position + len(tag)


def _find(text: str, after: int) -> int:
    """One search for both tags: two would go over the rest of the text for each call that lacks one of them."""
    match = _EITHER.search(text, after)
    return match.start() if match else -1


QWEN3_CODER = ToolFormat(parse_qwen3_coder, render_qwen3_coder)
