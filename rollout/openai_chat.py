"""Turns as messages of OpenAI's chat API."""

from __future__ import annotations

from typing import Any

import orjson

from slime_swe.rollout.proxy.conversation import MessageCall
from slime_swe.rollout.turns import Call, Turn


def chat_message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_call(call) for call in turn.calls]
    if turn.call_id:
        message["tool_call_id"] = turn.call_id
    return message


# Levels of lists and objects: formats' writers and readers take 200 (pydantic) or 254 (orjson), those around included.
_DEEPEST = 100


def read_arguments(call: Call | MessageCall) -> dict[str, Any] | None:
    """The arguments by name; None where the policy wrote something else, or nested them more than 100 levels deep."""
    try:
        found = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and _fits(found, _DEEPEST) else None


def _fits(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested no deeper."""
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits(inner, levels - 1) for inner in inside)


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
