"""Tool calls of GLM-4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`.

GLM-4.5 and 4.6 write a newline after the name, a key and a value, GLM-4.7 nothing. Both are read alike, `glm45` and
`glm47` write as the models do. Values are text.
"""

from __future__ import annotations

import re
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

_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"
_TAGS = re.compile(f"{OPEN}|{CLOSE}")
_AFTER_NAME = re.compile(f"\n|{_KEY}|{OPEN}|{CLOSE}")


def parse_glm47(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls. A closing `</tool_call>` inside a value is part of the value."""
    if CLOSE in text and OPEN not in text:
        end = text.find(CLOSE)
        start = max(0, text.find(_KEY, 0, end))
        return ParsedTurn(text[:start], [MalformedCall("", text[start:end].strip(), f"{CLOSE} without {OPEN}")])
    turn = parse_calls(text, partial(text.find, OPEN), partial(_parse_one, text), partial(_read_malformed, text))
    return with_types(turn, tools)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    name, position = _name(text, start)
    arguments: dict[str, str] = {}
    position = skip_space(text, position)
    while text.startswith(_KEY, position):
        key, position = _until(text, position + len(_KEY), _END_KEY, "a key")
        key = key.strip()
        if key in arguments:
            raise CallError(f"argument {key!r} is given twice")
        position = expect(text, position, _VALUE)
        arguments[key], position = _until(text, position, _END_VALUE, f"argument {key!r}")
        position = skip_space(text, position)
    return ToolCall(name, arguments), expect(text, position, CLOSE)


def _read_malformed(text: str, start: int, error: str) -> tuple[MalformedCall, int]:
    """Read a malformed call up to the next tag that ends or begins one, even if a value was meant to hold that."""
    name, start = _name_or_none(text, start)
    end = first_of(_TAGS, text, start)
    return MalformedCall(name, text[start:end].strip(), error), end


def _name(text: str, start: int) -> tuple[str, int]:
    name, end = _name_or_none(text, start)
    if not name:
        raise CallError(f"expected {OPEN} and the name of a tool")
    return name, end


def _name_or_none(text: str, start: int) -> tuple[str, int]:
    """Return the name of the call that starts here, and where it ends; no name where there is no proper one."""
    start = skip_space(text, start + len(OPEN))
    end = first_of(_AFTER_NAME, text, start)
    name = text[start:end].strip()
    return (name, end) if name and not set(name) & set("<>{}") else ("", start)


def _until(text: str, start: int, tag: str, what: str) -> tuple[str, int]:
    end = text.find(tag, start)
    if end < 0:
        raise CallError(f"{what} does not end in {tag}")
    return text[start:end], end + len(tag)


_WRITTEN_45 = Tags(
    before_name=OPEN,
    after_name="\n",
    before_key=_KEY,
    before_value=f"{_END_KEY}\n{_VALUE}",
    after_value=f"{_END_VALUE}\n",
    after_call=CLOSE,
    between_calls="\n",
)
_WRITTEN_47 = Tags(
    before_name=OPEN,
    after_name="",
    before_key=_KEY,
    before_value=f"{_END_KEY}{_VALUE}",
    after_value=_END_VALUE,
    after_call=CLOSE,
)
GLM45 = ToolFormat(parse_glm47, _WRITTEN_45.render, template="glm4_5")
GLM47 = ToolFormat(parse_glm47, _WRITTEN_47.render, template="glm4_7")
