"""The checkpoint's chat template: proven, and writing tool calls as the recipe's parser reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_folder
from slime_swe.launch.doctor.finding import Finding, failure, ok, skipped
from slime_swe.launch.doctor.machine import Machine
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.families import tool_format_of
from slime_swe.rollout.agents.native import load_template
from slime_swe.rollout.chat.tokenizer import TemplateError, load_tokenizer
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ToolCall, parse
from slime_swe.rollout.tools import TOOLS

PROBES = (
    ToolCall("view", {"path": "src/a.py"}),
    ToolCall("str_replace", {"path": "a b.py", "old": 'if x < 1:\n    return "{}"\n', "new": "  # ünï 漢字 & \\n\n"}),
)
_BEFORE = "I look at it."


def check_chat(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Both need the checkpoint; without one they are skipped."""
    try:
        folder = str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder))
    except UserError:
        yield skipped("chat template", "there is no checkpoint")
        return
    try:
        load_template(folder)
    except TemplateError as error:
        fix = "use the checkpoint's own template, or one that keeps earlier turns byte for byte"
        yield failure("chat template", str(error), fix)
    else:
        yield ok("chat template", "each turn's increment is proven exact")
    yield _tool_calls(load_tokenizer(folder), tool_format_of(recipe.model))


def _tool_calls(tokenizer: Any, written: str) -> Finding:
    """The policy was taught to write calls as its template renders them; the parser must read these back."""
    formats = dict.fromkeys((*TOOL_FORMATS, written))
    fits = [name for name in formats if all(_reads_back(tokenizer, call, name) for call in PROBES)]
    if written in fits:
        return ok("tool calls", f"what the template writes, model.tool_format={written} reads back")
    if not any(_rendered(tokenizer, call) for call in PROBES):
        return skipped("tool calls", "the template renders no tool calls, so there is nothing to compare with")
    found = f"model.tool_format={written} does not read back what the checkpoint's template writes"
    if fits:
        return failure("tool calls", found, f"set model.tool_format={' or '.join(fits)}, which does")
    return failure("tool calls", found, f"none of {', '.join(TOOL_FORMATS)} does: add a format in rollout/chat/")


def _reads_back(tokenizer: Any, call: ToolCall, name: str) -> bool:
    turn = parse(_rendered(tokenizer, call), name)
    return turn.error is None and turn.calls == [call]


def _rendered(tokenizer: Any, call: ToolCall) -> str:
    """The assistant's turn that makes this call, as the template writes it; empty where it writes none."""
    from jinja2 import TemplateError as JinjaError

    user, function = {"role": "user", "content": "Repair it."}, {"name": call.name, "arguments": call.arguments}
    calls = [{"type": "function", "function": function}]
    reply = {"role": "assistant", "content": _BEFORE, "tool_calls": calls}
    schemas = [tool.spec.schema() for tool in TOOLS]
    try:
        text: str = tokenizer.apply_chat_template([user, reply], tools=schemas, tokenize=False)
    except (JinjaError, TypeError):  # a template that wants `content` only
        return ""
    said = text.rpartition(_BEFORE)[2]
    return said if call.name in said else ""
