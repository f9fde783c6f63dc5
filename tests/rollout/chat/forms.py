"""Qwen2.5-Coder's forms of calls, as that model writes them."""

from __future__ import annotations

import json
from collections.abc import Callable

from slime_swe.rollout.chat.hermes import render_hermes
from slime_swe.rollout.chat.tool_formats import ToolCall


def _json(calls: tuple[ToolCall, ...]) -> str:
    return "\n".join(json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)


WRITERS: dict[str, Callable[..., str]] = {
    "tool_call": lambda *calls: "".join(render_hermes(calls)),
    "fenced": lambda *calls: f"```json\n{_json(calls)}\n```",
    "bare": lambda *calls: _json(calls),
    "tools": lambda *calls: f"<tools>\n{_json(calls)}\n</tools>",
    "function_call": lambda *calls: f"```xml\n<function_call>\n{_json(calls)}\n</function_call>\n```",
}
