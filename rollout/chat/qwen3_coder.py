"""Tool calls of Qwen3-Coder, Coder-Next and Qwen3.5.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values are text, without the one newline that the format puts on either side of them.
"""

from __future__ import annotations

import re
from functools import partial

from slime_swe.rollout.chat.hermes import CLOSE, OPEN
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
    with_types,
)

_TAGS = CallTags(
    outer=OPEN,
    outer_end=CLOSE,
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    name="[^<>]+",
    end_name=">",
    around_value="\n",
)
_STARTS = re.compile(f"{OPEN}|{_TAGS.call}")


def parse_qwen3_coder(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls. As in the models' own output, the outer `<tool_call>` tags may be missing."""
    if _TAGS.call_end in text and _find(text, 0) < 0:
        end = text.find(_TAGS.call_end)
        start = max(0, text.find(_TAGS.parameter, 0, end))
        error = f"{_TAGS.call_end} without {_TAGS.call}NAME>"
        return ParsedTurn(text[:start], [MalformedCall("", text[start:end].strip(), error)])
    turn = parse_calls(text, partial(_find, text), partial(_parse_one, text), partial(_TAGS.read_malformed, text))
    return with_types(turn, tools)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    call, end = _TAGS.parse(text, _TAGS.inside(text, start))
    return call, expect(text, end, CLOSE) if text.startswith(OPEN, start) else end


def _find(text: str, after: int) -> int:
    found = _STARTS.search(text, after)
    return found.start() if found else -1


_WRITTEN = Tags(
    before_name=f"{OPEN}\n{_TAGS.call}",
    after_name=">\n",
    before_key=_TAGS.parameter,
    before_value=">\n",
    after_value=f"\n{_TAGS.parameter_end}\n",
    after_call=f"{_TAGS.call_end}\n{CLOSE}",
    between_calls="\n",
)
QWEN3_CODER = ToolFormat(parse_qwen3_coder, _WRITTEN.render, template="qwen3_5")
