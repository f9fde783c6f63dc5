"""Hermes tool calls (Qwen2.5): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import json
from functools import partial
from typing import NoReturn

from slime_swe.rollout.chat.tool_formats import MalformedCall, ParsedTurn, ToolCall, ToolFormat, parse_calls, skip_space

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse_hermes(text: str) -> ParsedTurn:
    """The turn's calls. A closing tag inside a JSON string is part of the string."""
    if OPEN not in text and CLOSE in text:
        return ParsedTurn(text, [], f"{CLOSE} without {OPEN}")
    return parse_calls(text, partial(text.find, OPEN), partial(_parse_one, text))


def render_hermes(call: ToolCall) -> str:
    """What the models write between the tags for this call."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, start + len(OPEN)))
    except RecursionError:
        raise MalformedCall("the tool call is nested too deeply") from None
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is out of range"
        raise MalformedCall(f"the tool call is not valid JSON: {why}") from None
    end = skip_space(text, end)
    if not text.startswith(CLOSE, end):
        raise MalformedCall(f"the tool call does not end in {CLOSE}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall('a tool call must be {"name": string, "arguments": object}')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise MalformedCall(f'"arguments" must be an object, got {type(arguments).__name__}')
    return ToolCall(value["name"], arguments), end + len(CLOSE)


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)

HERMES = ToolFormat(parse_hermes, render_hermes)
