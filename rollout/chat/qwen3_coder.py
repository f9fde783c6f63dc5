"""Tool calls of Qwen3-Coder, Coder-Next and Qwen3.5.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values are text, without the one newline that the format puts on either side of them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

from slime_swe.rollout.chat.hermes import CLOSE, OPEN
from slime_swe.rollout.chat.tool_formats import (
    CallError,
    MalformedCall,
    ParsedTurn,
    Tags,
    ToolCall,
    ToolFormat,
    Tools,
    expect,
    first_of,
    parse_calls,
    skip_space,
    with_types,
)

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_STARTS = re.compile(f"{OPEN}|{_FUNCTION}")
_TAGS = re.compile(f"{OPEN}|{CLOSE}|{_FUNCTION}|{_END_FUNCTION}")


def parse_qwen3_coder(text: str, tools: Tools = ()) -> ParsedTurn:
    """The turn's calls. As in the models' own output, the outer `<tool_call>` tags may be missing."""
    if _END_FUNCTION in text and _find(text, 0) < 0:
        end = text.find(_END_FUNCTION)
        start = max(0, text.find(_PARAMETER, 0, end))
        call = MalformedCall("", text[start:end].strip(), f"{_END_FUNCTION} without {_FUNCTION}name>")
        return ParsedTurn(text[:start], [call])
    turn = parse_calls(text, partial(_find, text), partial(_parse_one, text), partial(_read_malformed, text))
    return with_types(turn, tools)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    wrapped = text.startswith(OPEN, start)
    call, end = _parse_function(text, _inside(text, start))
    return call, expect(text, end, CLOSE) if wrapped else end


def _parse_function(text: str, position: int) -> tuple[ToolCall, int]:
    name, position = _tag(text, position, _FUNCTION)
    arguments: dict[str, str] = {}
    position = skip_space(text, position)
    while text.startswith(_PARAMETER, position):
        key, position = _tag(text, position, _PARAMETER)
        if key in arguments:
            raise CallError(f"parameter {key!r} is given twice")
        end = text.find(_END_PARAMETER, position)
        if end < 0:
            raise CallError(f"parameter {key!r} does not end in {_END_PARAMETER}")
        arguments[key] = text[position:end].removeprefix("\n").removesuffix("\n")
        position = skip_space(text, end + len(_END_PARAMETER))
    return ToolCall(name, arguments), expect(text, position, _END_FUNCTION)


def _read_malformed(text: str, start: int, error: str) -> tuple[MalformedCall, int]:
    """A function that is whole has its arguments. Else the call ends at the next tag that ends or begins one."""
    start = _inside(text, start)
    try:
        call, end = _parse_function(text, start)
    except CallError:
        name = ""
        with suppress(CallError):
            name, start = _tag(text, start, _FUNCTION)
        after = start + text.startswith(_FUNCTION, start)
        end = first_of(_TAGS, text, after)
        return MalformedCall(name, text[start:end].strip(), error), end
    return MalformedCall(call.name, dict(call.arguments), error), end


def _inside(text: str, start: int) -> int:
    return skip_space(text, start + len(OPEN)) if text.startswith(OPEN, start) else start


def _tag(text: str, position: int, opening: str) -> tuple[str, int]:
    """The name in `<function=NAME>` or `<parameter=NAME>`, and where the tag ends."""
    if not text.startswith(opening, position):
        raise CallError(f"expected {opening}name> but found {text[position : position + 20]!r}")
    end = text.find(">", position)
    name = text[position + len(opening) : end].strip() if end >= 0 else ""
    if not name or "\n" in name or "<" in name:
        raise CallError(f"{opening}name> has no proper name")
    return name, end + 1


def _find(text: str, after: int) -> int:
    found = _STARTS.search(text, after)
    return found.start() if found else -1


_WRITTEN = Tags(
    before_name=f"{OPEN}\n{_FUNCTION}",
    after_name=">\n",
    before_key=_PARAMETER,
    before_value=">\n",
    after_value=f"\n{_END_PARAMETER}\n",
    after_call=f"{_END_FUNCTION}\n{CLOSE}",
    between_calls="\n",
)
QWEN3_CODER = ToolFormat(parse_qwen3_coder, _WRITTEN.render)
