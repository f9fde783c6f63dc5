"""Hermes tool calls (Qwen2.5-Instruct, Qwen3): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from slime_swe.rollout.chat.tool_formats import (
    JSON,
    CallError,
    MalformedCall,
    ParsedTurn,
    ToolCall,
    ToolFormat,
    Tools,
    first_of,
    parse_calls,
    skip_space,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAGS = re.compile(f"{OPEN}|{CLOSE}")
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def parse_hermes(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls. A closing tag inside a JSON string is part of the string."""
    if OPEN not in text and CLOSE in text:
        end = text.find(CLOSE)
        start = max(0, text.find("{", 0, end))
        return ParsedTurn(text[:start], [malformed(text[start:end], f"{CLOSE} without {OPEN}", closed=True)])
    return parse_calls(text, partial(text.find, OPEN), partial(parse_one, text), partial(read_malformed, text))


def render_hermes(calls: Sequence[ToolCall]) -> list[str]:
    texts = [json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in calls]
    rendered = [f"{OPEN}\n"]
    for text in texts:
        rendered += [text, f"\n{CLOSE}\n{OPEN}\n"]
    rendered[-1] = f"\n{CLOSE}"
    return rendered


def parse_one(text: str, start: int) -> tuple[ToolCall, int]:
    """Return the call whose opening tag is at `start`, and where it ends. Raises `CallError`."""
    value, end = decode(text, skip_space(text, start + len(OPEN)))
    end = skip_space(text, end)
    if not text.startswith(CLOSE, end):
        raise CallError(f"the tool call does not end in {CLOSE}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise CallError('a tool call must be {"name": string, "arguments": object}')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallError(f'"arguments" must be an object, got {type(arguments).__name__}')
    return ToolCall(value["name"], arguments), end + len(CLOSE)


def read_malformed(text: str, start: int, error: str) -> tuple[MalformedCall, int]:
    """Read a malformed call up to the next tag of either kind, even if a string of its JSON was meant to hold that."""
    start += len(OPEN)
    end = first_of(_TAGS, text, start)
    return malformed(text[start:end], error, closed=text.startswith(CLOSE, end)), end


def malformed(text: str, error: str, *, closed: bool) -> MalformedCall:
    """Return what can be read of a call's JSON. closed: the text ends where the call does."""
    text = text.strip()
    found = _ARGUMENTS.search(text)
    name = _NAME.search(text, 0, found.start() if found else len(text))
    if name is None:
        return MalformedCall("", text, error)
    if found is None:
        return MalformedCall(_string(name.group(1)), text[name.end() :].strip(), error)
    try:
        arguments, end = decode(text, found.end())
    except CallError:
        rest = text[found.end() :]
        return MalformedCall(_string(name.group(1)), rest.removesuffix("}") if closed else rest, error)
    written = arguments if isinstance(arguments, dict) else text[found.end() : end]
    return MalformedCall(_string(name.group(1)), written, error)


def _string(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except json.JSONDecodeError:
        return literal[1:-1]


def decode(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at `start`, and where it ends. Raises `CallError`."""
    try:
        return JSON.raw_decode(text, start)
    except RecursionError:
        raise CallError("the tool call is nested too deeply") from None
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is out of range"
        raise CallError(f"the tool call is not valid JSON: {why}") from None


HERMES = ToolFormat(parse_hermes, render_hermes, template="qwen3")
