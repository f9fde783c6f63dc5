"""Tool formats: how a policy writes its tool calls as text. A new one is a file in this folder and a line here."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NoReturn

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError, unknown

# Short name -> dotted path of a `ToolFormat`. Any such path works as a name.
TOOL_FORMATS = {
    "hermes": "slime_swe.rollout.chat.hermes.HERMES",
    "qwen25_coder": "slime_swe.rollout.chat.qwen25_coder.QWEN25_CODER",
    "qwen3_coder": "slime_swe.rollout.chat.qwen3_coder.QWEN3_CODER",
    "glm45": "slime_swe.rollout.chat.glm47.GLM45",
    "glm47": "slime_swe.rollout.chat.glm47.GLM47",
    "minimax_m2": "slime_swe.rollout.chat.minimax_m2.MINIMAX_M2",
    "llama3": "slime_swe.rollout.chat.llama3.LLAMA3",
    "bash_block": "slime_swe.rollout.chat.bash_block.BASH_BLOCK",
}
# Parsing a turn is not to hold up the others for longer than 50 ms. Neither limit is enough alone: each call may be
# looked for up to the turn's end (12,000 calls in 128 KiB: 0.2 s), and one call of 8 MiB is much JSON (0.5 s).
MAX_TURN = 1 << 19  # characters
MOST_CALLS = 128  # of one turn
_SPACE = re.compile(r"[ \t\r\n]*")


Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ToolCall:
    """A tool call that was read. form: which of its format's forms it is written in; empty where the format has one."""

    name: str
    arguments: dict[str, Any]
    form: str = field(default="", compare=False)


@dataclass(frozen=True)
class MalformedCall:
    """A call that breaks its format, and what can be read of it.

    name: empty where none can be read. arguments: their values where only what is around them is wrong, else the text
    that the policy wrote for them, or that of the whole call where it has no name. error: what is wrong, said to the
    policy. form: as in `ToolCall`.
    """

    name: str
    arguments: dict[str, Any] | str
    error: str
    form: str = field(default="", compare=False)


@dataclass(frozen=True)
class ParsedTurn:
    """A turn's calls in order, `written`, at most `MOST_CALLS`, and what was said before the first, `text_before`."""

    text_before: str
    written: list[ToolCall | MalformedCall]

    @property
    def calls(self) -> list[ToolCall]:
        """The well-formed calls before the first malformed one."""
        well_formed = []
        for call in self.written:
            if isinstance(call, MalformedCall):
                break
            well_formed.append(call)
        return well_formed

    @property
    def error(self) -> str | None:
        """The error of the first malformed call; None where there is none."""
        return next((call.error for call in self.written if isinstance(call, MalformedCall)), None)


_EXAMPLE = ToolCall("bash", {"command": "ls"})


class CallError(Exception):
    """An error of one call's parser; the message is for the policy."""


def parse(text: str, format: str, tools: Tools = ()) -> ParsedTurn:
    """Read the calls in `text`, of one who was offered these tools. Raises `UserError` for an unknown format."""
    return tool_format(format).parse(text, tools)


@dataclass(frozen=True)
class ToolFormat:
    """The functions and texts of one tool format.

    parse: reads a sampled turn's text, of one who was offered these tools (OpenAI's JSON schemas); never raises. Where
    the format does not say what type a value has, the tool's schema does.

    render: writes the calls of a turn as the models do, as texts that alternate between the format's own (its tags may
    be control tokens) and what a call holds (which never are). None: calls of others can't be written, which agents
    behind the proxy need.

    template: a shipped chat template that asks for calls in this format, or says nothing of calls where the
    instructions do; empty where none does.

    example: a call as a policy that wrote none is shown it; empty for what `render` writes.

    instructions: what the system prompt says of the tools and their calls, for models whose chat template has no place
    for tools. Results are then a user's messages. Empty where the template tells the tools.
    """

    parse: Callable[[str, Tools], ParsedTurn]
    render: Callable[[Sequence[ToolCall]], list[str]] | None
    template: str = ""
    example: str = ""
    instructions: str = ""

    @property
    def reminder(self) -> str:
        """The text that shows the form of a call to a policy that wrote none; empty where nobody knows the form."""
        example = self.example or ("".join(self.render([_EXAMPLE])) if self.render else "")
        return self.instructions or (f"Write a call in this form:\n{example}" if example else "")


def parse_calls(
    text: str,
    find: Callable[[int], int],
    parse_one: Callable[[int], tuple[ToolCall, int]],
    read_malformed: Callable[[int, str], tuple[MalformedCall, int]],
) -> ParsedTurn:
    """Parse a turn's calls. `find` says where the next one starts after a place in the text, or -1. `parse_one` gives
    the call that starts somewhere, and where it ends, or raises `CallError`; its message goes to `read_malformed`. A
    turn of more than `MAX_TURN` characters is one malformed call.
    """
    written: list[ToolCall | MalformedCall] = []
    start = find(0)
    before = text if start < 0 else text[:start]
    if start >= 0 and len(text) > MAX_TURN:
        return too_long(before)
    while start >= 0 and len(written) < MOST_CALLS:
        call: ToolCall | MalformedCall
        try:
            call, end = parse_one(start)
        except CallError as error:
            call, end = read_malformed(start, str(error))
        written.append(call)
        start = find(end)
    return ParsedTurn(before, written)


def too_long(text_before: str) -> ParsedTurn:
    """Make the turn, of one malformed call, for a text with calls of more than `MAX_TURN` characters."""
    error = f"a turn with tool calls must not have more than {MAX_TURN} characters"
    return ParsedTurn(text_before, [MalformedCall("", "", error)])


def names_of(tools: Tools) -> frozenset[str]:
    return frozenset(str(tool["function"]["name"]) for tool in tools)


@dataclass(frozen=True)
class Tags:
    """The tags around the names, keys and values of a turn's calls, in a format that has only text."""

    before_name: str
    after_name: str
    before_key: str
    before_value: str
    after_value: str
    after_call: str
    between_calls: str = ""
    before_calls: str = ""
    after_calls: str = ""

    def render(self, calls: Sequence[ToolCall]) -> list[str]:
        """Write calls as `ToolFormat.render` does. A value that is no text is given as JSON."""
        texts, tag = [], self.before_calls
        for number, call in enumerate(calls):
            texts += [tag + self.between_calls * (number > 0) + self.before_name, call.name]
            tag = self.after_name
            for key, value in call.arguments.items():
                written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                texts += [tag + self.before_key, key, self.before_value, written]
                tag = self.after_value
            tag += self.after_call
        return [*texts, tag + self.after_calls]


def expect(text: str, position: int, tag: str) -> int:
    """Find the end of the tag that has to come next, after white space. Raises `CallError`."""
    position = skip_space(text, position)
    if not text.startswith(tag, position):
        raise CallError(f"expected {tag} but found {text[position : position + 20]!r}")
    return position + len(tag)


def with_types(turn: ParsedTurn, tools: Tools) -> ParsedTurn:
    """Return the turn of a format that has only text with typed values: what is no text by the tool's schema is read as
    JSON, if it is JSON of that type.
    """
    written: list[ToolCall | MalformedCall] = []
    for call in turn.written:
        if isinstance(call.arguments, dict):
            properties = _properties(call.name, tools)
            call = replace(call, arguments={key: _typed(v, properties.get(key)) for key, v in call.arguments.items()})
        written.append(call)
    return ParsedTurn(turn.text_before, written)


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    for tool in tools:
        if tool["function"]["name"] == name:
            found = (tool["function"].get("parameters") or {}).get("properties")
            return found if isinstance(found, Mapping) else {}
    return {}


def _typed(value: Any, schema: Any) -> Any:
    types = _types(schema)
    if not isinstance(value, str) or not types or not types <= _PYTHON.keys():
        return value
    try:
        read = JSON.decode(value)
    except (ValueError, RecursionError):
        return value
    return read if any(type(read) in _PYTHON[name] for name in types) else value


def _types(schema: Any) -> set[str]:
    """Return the types that a schema names itself or in its alternatives; none where it leaves one open."""
    if not isinstance(schema, Mapping):
        return set()
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list) and "type" not in schema:
        each = [_types(one) for one in alternatives]
        return set().union(*each) if all(each) else set()
    named = schema.get("type")
    named = named if isinstance(named, list) else [named]
    return set(named) if all(isinstance(name, str) for name in named) else set()


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


JSON = json.JSONDecoder(parse_constant=_refuse_constant)
_PYTHON: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def first_of(tags: re.Pattern[str], text: str, start: int) -> int:
    """Find the place of the first of these tags from `start` on; the text's end where there is none."""
    found = tags.search(text, start)
    return found.start() if found else len(text)


def skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, position
    return match.end()


@cache
def tool_format(name: str) -> ToolFormat:
    """Find a format by its name in `TOOL_FORMATS`, SGLang's (`sglang.NAME`), or a dotted path. Raises `UserError`."""
    if name.startswith("sglang."):
        return sglang_format(name)
    found: ToolFormat = load_registered(name, TOOL_FORMATS, "model.tool_format")
    return found


# SGLang's parsers of tool calls, by SGLang's names for them: `model.tool_format=sglang.kimi_k2`.
#
# What SGLang drops is dropped here too: a malformed call beside one that is read is lost, and with most parsers a call
# of a tool that was not offered. Only where nothing is left of a turn that holds the format's tags is the policy told
# that it is malformed. The project's own formats tell it what is wrong with each call.
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
    """Make the format of `sglang.NAME`. Its `render` is None where SGLang does not say how such a call is written, or
    writes what it can't read. Raises `UserError`.
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
    """Convert a tool to SGLang's class; it has only its name where its schema is none for SGLang."""
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


# Reasoning formats: the tags between which a policy thinks before it speaks. A new one is a line here.
@dataclass(frozen=True)
class ReasoningFormat:
    """A turn is `open`, the reasoning, `close`, and then what is said. Some chat templates open the reasoning
    themselves, at the end of the prompt; then the policy's own turn begins inside it.
    """

    open: str
    close: str

    def opened_by(self, prompt_end: str) -> str:
        """Return the text by which a prompt that ends so opens the turn's reasoning; empty where it does not."""
        at = prompt_end.rfind(self.open)
        return prompt_end[at:] if at > prompt_end.rfind(self.close) else ""

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """Split a turn into its reasoning and what it says, without the white space that the format puts around each.

        Reasoning that is never closed goes on to the turn's end. A turn that does not begin with reasoning has none.
        """
        begun = text.lstrip()
        if begun.startswith(self.open):
            text = begun[len(self.open) :]
        elif not opened:
            return "", text
        reasoning, _, said = text.partition(self.close)
        return reasoning.strip(), said.lstrip()


THINK = ReasoningFormat("<think>", "</think>")  # Qwen3, GLM-4.5, MiniMax-M2, Kimi-K2, DeepSeek-R1
REASONING_FORMATS = (THINK,)


def reasoning_of(chat_template: str) -> ReasoningFormat | None:
    """Find the format whose tags a chat template's source names; None where it names none."""
    return next((one for one in REASONING_FORMATS if one.close in chat_template), None)
