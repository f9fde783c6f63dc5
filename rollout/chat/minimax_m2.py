"""Tool calls of MiniMax-M2: one block for all calls of a turn.

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>

Values are text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

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

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _END_INVOKE = '<invoke name="', "</invoke>"
_PARAMETER, _END_PARAMETER = '<parameter name="', "</parameter>"
_END_NAME = '">'
_NAME = re.compile(f'([^<>"\\n]+){_END_NAME}')
_TAGS = re.compile(f"{_OPEN}|{_CLOSE}|{_INVOKE}|{_END_INVOKE}")


def parse_minimax_m2(text: str, tools: Tools = ()) -> ParsedTurn:
    """The turn's calls: those of a block, and of further blocks."""
    if _CLOSE in text and _OPEN not in text:
        end = text.find(_CLOSE)
        start = max(0, text.find(_INVOKE, 0, end))
        return ParsedTurn(text[:start], [MalformedCall("", text[start:end].strip(), f"{_CLOSE} without {_OPEN}")])
    turn = parse_calls(text, partial(_find, text), partial(_parse_one, text), partial(_read_malformed, text))
    return with_types(turn, tools)


def _find(text: str, after: int) -> int:
    """The block's next call, or the next block."""
    following = skip_space(text, after)
    return following if after and text.startswith(_INVOKE, following) else text.find(_OPEN, after)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    """A call, which the block's end or its next call has to follow."""
    call, end = _parse_invoke(text, _inside(text, start))
    if not text.startswith(_INVOKE, skip_space(text, end)):
        expect(text, end, _CLOSE)
    return call, end


def _parse_invoke(text: str, position: int) -> tuple[ToolCall, int]:
    name, position = _tag(text, position, _INVOKE)
    arguments: dict[str, str] = {}
    position = skip_space(text, position)
    while text.startswith(_PARAMETER, position):
        key, position = _tag(text, position, _PARAMETER)
        if key in arguments:
            raise CallError(f"parameter {key!r} is given twice")
        end = text.find(_END_PARAMETER, position)
        if end < 0:
            raise CallError(f"parameter {key!r} does not end in {_END_PARAMETER}")
        arguments[key] = text[position:end]
        position = skip_space(text, end + len(_END_PARAMETER))
    return ToolCall(name, arguments), expect(text, position, _END_INVOKE)


def _read_malformed(text: str, start: int, error: str) -> tuple[MalformedCall, int]:
    """A call that is whole has its arguments. Else it ends at the next tag that ends or begins one."""
    start = _inside(text, start)
    try:
        call, end = _parse_invoke(text, start)
    except CallError:
        name = ""
        with suppress(CallError):
            name, start = _tag(text, start, _INVOKE)
        end = first_of(_TAGS, text, start + text.startswith(_INVOKE, start))
        after = end + len(_END_INVOKE) if text.startswith(_END_INVOKE, end) else end
        return MalformedCall(name, text[start:end].strip(), error), after
    return MalformedCall(call.name, dict(call.arguments), error), end


def _inside(text: str, start: int) -> int:
    return skip_space(text, start + len(_OPEN)) if text.startswith(_OPEN, start) else start


def _tag(text: str, position: int, opening: str) -> tuple[str, int]:
    """The name in `<invoke name="NAME">` or `<parameter name="NAME">`, and where the tag ends."""
    if not text.startswith(opening, position):
        raise CallError(f"expected {opening}…{_END_NAME} but found {text[position : position + 20]!r}")
    name = _NAME.match(text, position + len(opening))
    if name is None or not name.group(1).strip():
        raise CallError(f"{opening}…{_END_NAME} has no proper name")
    return name.group(1).strip(), name.end()


_WRITTEN = Tags(
    before_name=_INVOKE,
    after_name=f"{_END_NAME}\n",
    before_key=_PARAMETER,
    before_value=_END_NAME,
    after_value=f"{_END_PARAMETER}\n",
    after_call=f"{_END_INVOKE}\n",
    before_calls=f"{_OPEN}\n",
    after_calls=_CLOSE,
)
MINIMAX_M2 = ToolFormat(parse_minimax_m2, _WRITTEN.render)
