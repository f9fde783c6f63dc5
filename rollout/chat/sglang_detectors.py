"""SGLang's parsers of tool calls, by SGLang's names for them: `model.tool_format=sglang.kimi_k2`.

What SGLang drops is dropped here too: a malformed call beside one that is read is lost, and with most parsers a call
of a tool that was not offered. Only where nothing is left of a turn that holds the format's tags is the policy told
that it is malformed. The project's own formats tell it what is wrong with each call.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from slime_swe.errors import UserError, unknown
from slime_swe.rollout.chat.tool_formats import MOST_CALLS, MalformedCall, ParsedTurn, ToolCall, ToolFormat, Tools

PREFIX = "sglang."
_MODULE = "sglang.srt.function_call.function_call_parser"
# Characters: several of these parsers take time in the square of a hostile turn's length.
MAX_TURN_OF_SGLANG = 1 << 15
_NAME = "slime_swe_name"
_PROBE = ToolCall("probe", {"text": "a"})
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


def sglang_format(name: str) -> ToolFormat:
    """The format of `sglang.NAME`. Its `render` is None where SGLang does not say how such a call is written, or writes
    what it can't read. Raises `UserError`.
    """
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        raise UserError(
            f"model.tool_format={name!r} is a parser of SGLang, which can't be imported here: {error}. The training "
            "image has it; elsewhere, name one of the project's own formats"
        ) from error
    detectors: dict[str, Any] = module.FunctionCallParser.ToolCallParserEnum
    wanted = name.removeprefix(PREFIX)
    if wanted not in detectors:
        raise UserError(unknown("model.tool_format=sglang.", wanted, detectors))
    parse = partial(_parse, detectors[wanted], module.Tool, wanted)
    render = _renderer(detectors[wanted])
    if render and parse("".join(render([_PROBE])), [_PROBE_TOOL]).written != [_PROBE]:
        render = None
    return ToolFormat(parse, render)


def _parse(detector_class: Any, tool_class: Any, name: str, text: str, tools: Tools) -> ParsedTurn:
    detector = detector_class()
    if not detector.has_tool_call(text):
        return ParsedTurn(text, [])
    if len(text) > MAX_TURN_OF_SGLANG:
        error = f"a turn with tool calls must not have more than {MAX_TURN_OF_SGLANG} characters"
        return ParsedTurn("", [MalformedCall("", "", error)])
    offered = ", ".join(tool["function"]["name"] for tool in tools)
    why = f"SGLang's parser {name} reads no call of an available tool in the turn; available: {offered or 'none'}"
    try:
        found = detector.detect_and_parse(text, [_tool(tool_class, tool) for tool in tools])
    except Exception as error:  # others' code, of which the policy may trip any line
        return ParsedTurn("", [MalformedCall("", text, f"{why} ({error or type(error).__name__})")])
    if not found.calls:
        return ParsedTurn("", [MalformedCall("", text, why)])
    return ParsedTurn(found.normal_text, [_call(item) for item in found.calls[:MOST_CALLS]])


def _tool(tool_class: Any, tool: Any) -> Any:
    """A tool as SGLang has it; only its name where its schema is none for SGLang."""
    try:
        return tool_class.model_validate(tool)
    except ValueError:
        return tool_class.model_validate({"type": "function", "function": {"name": tool["function"]["name"]}})


def _call(item: Any) -> ToolCall | MalformedCall:
    try:
        arguments = json.loads(item.parameters)
    except (ValueError, RecursionError):
        arguments = item.parameters
    if isinstance(arguments, dict):
        return ToolCall(item.name or "", arguments)
    return MalformedCall(item.name or "", item.parameters, "the arguments of the tool call must be an object")


def _renderer(detector_class: Any) -> Callable[[Sequence[ToolCall]], list[str]] | None:
    try:
        info = detector_class().structure_info()(_NAME)
    except NotImplementedError:
        return None
    before, named, after = info.begin.partition(_NAME)
    if not named:
        return None

    def render(calls: Sequence[ToolCall]) -> list[str]:
        texts, tag = [], ""
        for call in calls:
            texts += [tag + before, call.name, after, json.dumps(call.arguments, ensure_ascii=False)]
            tag = info.end
        return [*texts, tag]

    return render
