"""Tool calls of Llama 3.1, 3.2 and 3.3: `{"name": …, "parameters": {…}}`, as their chat template asks for them.

A call has no tags, so it is told from other JSON by its keys and its place: an object of `name` and `parameters`, which
may have a `type` too, that begins a line. Its name is that of a tool that is offered, since policies quote JSON. Behind
`<|python_tag|>`, a token of its own, and behind a call and `;`, any name is a call. A turn of several calls has `; `
between them: the models are trained to write one a turn, and SGLang's parser reads several so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from slime_swe.rollout.chat.hermes import decode
from slime_swe.rollout.chat.tool_formats import (
    MAX_TURN,
    MOST_CALLS,
    CallError,
    MalformedCall,
    ParsedTurn,
    ToolCall,
    ToolFormat,
    Tools,
    names_of,
    skip_space,
    too_long,
)

_TAG = "<|python_tag|>"
_START = re.compile(
    r'(?P<tag><\|python_tag\|>)|^[ \t]*+(?P<bare>\{\s*+"(?:type|name|parameters|arguments)"\s*+:)', re.MULTILINE
)
_MEANT = re.compile(
    r'\{\s*+(?:"type"\s*+:\s*+"function"\s*+,\s*+)?"name"\s*+:\s*+"([^"\\\n]*)"\s*+,\s*+"parameters"\s*+:'
)
_KEYS = frozenset({"type", "name", "parameters", "arguments"})
_MOST_UNREAD = 8  # objects that are no JSON: each may be read up to the turn's end

Call = ToolCall | MalformedCall


def parse_llama3(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls."""
    if len(text) > MAX_TURN:
        return too_long("") if _TAG in text or '"parameters"' in text else ParsedTurn(text, [])
    offered = names_of(tools)
    written, before, at, unread = list[Call](), text, 0, 0
    while len(written) < MOST_CALLS and unread < _MOST_UNREAD and (found := _START.search(text, at)):
        if found["tag"]:
            calls, at = _calls(text, skip_space(text, found.end()), None)
        else:
            calls, at = _calls(text, found.start("bare"), offered)
            unread += at == found.start("bare")
            at = max(at, found.end())
        before = before if written or not calls else text[: found.start("tag" if found["tag"] else "bare")]
        written += calls[: MOST_CALLS - len(written)]
    return ParsedTurn(before, written)


def _calls(text: str, at: int, offered: frozenset[str] | None) -> tuple[list[Call], int]:
    """Return the calls that begin at a place and follow each other behind `;`, and where they end; none where it is
    other JSON, or none that can be read. offered: names that the first may have; None: any."""
    calls: list[Call] = []
    while not calls or (text.startswith(";", at) and text.startswith("{", at := skip_space(text, at + 1))):
        names = None if calls else offered
        try:
            value, end = decode(text, at)
            call = _call(value, names)
        except CallError as error:
            meant = _MEANT.match(text, at)
            name = meant[1] if meant else ""
            if names is not None and name not in names:
                return calls, at
            rest = text[meant.end() if meant else at :].strip()
            return [*calls, MalformedCall(name, rest, _with_form(str(error)))], len(text)
        if call is None:
            return calls, end
        calls.append(call)
        at = skip_space(text, end)
    return calls, at


def _call(value: Any, names: frozenset[str] | None) -> Call | None:
    """Return the call that a JSON value is; None where it is other JSON. names: those that it may have; None: any, and
    other JSON raises `CallError`."""
    is_one = isinstance(value, dict) and value.keys() <= _KEYS and value.get("type", "function") == "function"
    is_one = is_one and isinstance(value.get("name"), str)
    if names is not None and not (is_one and value["name"] in names):
        return None
    if not is_one:
        raise CallError('a tool call must be {"name": string, "parameters": object}')
    parameters = value.get("parameters")
    if isinstance(parameters, dict):
        return ToolCall(value["name"], parameters)
    wrong = f"must be an object, got {type(parameters).__name__}" if "parameters" in value else "is missing"
    given = json.dumps(value.get("parameters", value.get("arguments", "")), ensure_ascii=False)
    return MalformedCall(value["name"], given, _with_form(f'"parameters" {wrong}'))


def _with_form(error: str) -> str:
    return f"{error}. {LLAMA3.reminder}"


def render_llama3(calls: Sequence[ToolCall]) -> list[str]:
    rendered = [""]
    for call in calls:
        rendered += [json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False), "; "]
    return [*rendered[:-1], ""]


LLAMA3 = ToolFormat(parse_llama3, render_llama3, template="llama3")
