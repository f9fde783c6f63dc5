"""How a chat template writes tool calls, and which tool formats read them back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ToolCall, parse
from slime_swe.rollout.tools import TOOLS

Render = Callable[..., Any]
"""It takes messages and `tools`, and returns the text of both, as a tokenizer's `apply_chat_template` does."""

PROBES = (
    ToolCall("view", {"path": "src/a.py"}),
    ToolCall("str_replace", {"path": "a b.py", "old": 'if x < 1:\n    return "{}"\n', "new": "  # ünï 漢字 & \\n\n"}),
)
_BEFORE = "I look at it."


def readers(render: Render, written: str) -> list[str] | None:
    """The tool formats, `written` among those that are asked, that read back each call as the template writes it; None
    where it writes none."""
    said = {call.name: _rendered(render, call) for call in PROBES}
    if not any(said.values()):
        return None
    schemas = [tool.spec.schema() for tool in TOOLS]

    def reads(name: str) -> bool:
        turns = [(parse(said[call.name], name, schemas), call) for call in PROBES]
        return all(turn.error is None and turn.calls == [call] for turn, call in turns)

    return [name for name in dict.fromkeys((*TOOL_FORMATS, written)) if reads(name)]


def own_template(folder: Path) -> str:
    """The chat template that a checkpoint's folder holds; empty where it holds none. Raises `UserError` where its
    `tokenizer_config.json` can't be read."""
    file, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        given = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except ValueError as error:
        raise UserError(f"{config} is not JSON: {error}") from error
    template = given.get("chat_template") if isinstance(given, dict) else None
    return template if isinstance(template, str) else ""


def renderer(template: str) -> Render:
    """A renderer of a template's text that needs no tokenizer, and leaves its special tokens out. It needs
    `transformers`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: Any, tools: Any) -> Any:
        return render_jinja_template([messages], tools=tools, chat_template=template)[0][0]

    return render


def _rendered(render: Render, call: ToolCall) -> str:
    """The assistant's turn that makes this call, as the template writes it; empty where it writes none."""
    from jinja2 import TemplateError as JinjaError

    user, function = {"role": "user", "content": "Repair it."}, {"name": call.name, "arguments": call.arguments}
    calls = [{"type": "function", "function": function}]
    reply = {"role": "assistant", "content": _BEFORE, "tool_calls": calls}
    try:
        text: str = render([user, reply], tools=[tool.spec.schema() for tool in TOOLS])
    except (JinjaError, TypeError):  # a template that wants `content` only
        return ""
    said = text.rpartition(_BEFORE)[2]
    return said if call.name in said else ""
