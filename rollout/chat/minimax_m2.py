"""Tool calls of MiniMax-M2: one block for all calls of a turn.

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>

Values are text.
"""

from __future__ import annotations

from functools import partial

from slime_swe.rollout.chat.tagged import CallTags
from slime_swe.rollout.chat.tool_formats import (
    MalformedCall,
    ParsedTurn,
    Tags,
    ToolCall,
    ToolFormat,
    Tools,
    expect,
    parse_calls,
    skip_space,
    with_types,
)

_TAGS = CallTags(
    outer="<minimax:tool_call>",
    outer_end="</minimax:tool_call>",
    call='<invoke name="',
    call_end="</invoke>",
    parameter='<parameter name="',
    parameter_end="</parameter>",
    name=r'[^<>"\n]+',
    end_name='">',
)


def parse_minimax_m2(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls: those of a block, and of further blocks."""
    if _TAGS.outer_end in text and _TAGS.outer not in text:
        end = text.find(_TAGS.outer_end)
        start = max(0, text.find(_TAGS.call, 0, end))
        error = f"{_TAGS.outer_end} without {_TAGS.outer}"
        return ParsedTurn(text[:start], [MalformedCall("", text[start:end].strip(), error)])
    turn = parse_calls(text, partial(_find, text), partial(_parse_one, text), partial(_TAGS.read_malformed, text))
    return with_types(turn, tools)


def _find(text: str, after: int) -> int:
    """Find the block's next call, or the next block."""
    following = skip_space(text, after)
    return following if after and text.startswith(_TAGS.call, following) else text.find(_TAGS.outer, after)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    """Parse a call, which the block's end or its next call has to follow."""
    call, end = _TAGS.parse(text, _TAGS.inside(text, start))
    if not text.startswith(_TAGS.call, skip_space(text, end)):
        expect(text, end, _TAGS.outer_end)
    return call, end


_WRITTEN = Tags(
    before_name=_TAGS.call,
    after_name=f"{_TAGS.end_name}\n",
    before_key=_TAGS.parameter,
    before_value=_TAGS.end_name,
    after_value=f"{_TAGS.parameter_end}\n",
    after_call=f"{_TAGS.call_end}\n",
    before_calls=f"{_TAGS.outer}\n",
    after_calls=_TAGS.outer_end,
)
MINIMAX_M2 = ToolFormat(parse_minimax_m2, _WRITTEN.render, template="minimax_m2")
