"""The project's parsers against SGLang's on random replies, whole and streamed.

Each kind of difference is a row of the table in docs/native_agent.md, and a predicate here; any other difference fails.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slime_swe.rollout.chat.tool_formats import MalformedCall, ParsedTurn, ToolCall, parse, tool_format
from tests.rollout.chat.fuzzed_replies import SCHEMAS, TAGS, TOOLS, chunks, reply
from tests.rollout.chat.sglang_parsers import NEEDS, installed, sglang_parsers

FORMATS = [
    *[
        ("hermes", "hermes"),
        ("hermes", "qwen25"),
        ("qwen3_coder", "qwen3_coder"),
        ("glm45", "glm45"),
        ("glm47", "glm47"),
    ],
    ("minimax_m2", "minimax-m2"),
]
NAMES = {tool["function"]["name"] for tool in TOOLS}
DOCS = Path(__file__).parents[3] / "docs" / "native_agent.md"

pytestmark = [
    pytest.mark.skipif(not installed(), reason=f"needs SGLang's wheel: {NEEDS}"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning"),  # its `ast.literal_eval`
]


@pytest.fixture(scope="module")
def sglang():
    logging.disable(logging.ERROR)  # a line for each malformed call
    with sglang_parsers() as module:
        yield module
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Case:
    """One reply. `theirs`: names and arguments, of which those that are no JSON are text; None where SGLang raised."""

    format: str
    detector: str
    streamed: bool
    text: str
    ours: ParsedTurn
    theirs: list[tuple[str | None, Any]] | None


def cases(sglang: Any, format: str, name: str, streamed: bool, replies: int) -> Iterator[Case]:
    rng, tools = random.Random(replies), [sglang.Tool.model_validate(tool) for tool in TOOLS]
    for _ in range(replies):
        text = reply(rng, format)
        detector = sglang.FunctionCallParser.ToolCallParserEnum[name]()
        try:
            theirs = list(
                _streamed(detector, chunks(rng, format, text), tools) if streamed else _whole(detector, text, tools)
            )
        except Exception:
            theirs = None
        yield Case(format, name, streamed, text, parse(text, format, TOOLS), theirs)


def _whole(detector: Any, text: str, tools: list[Any]) -> list[tuple[str | None, Any]]:
    return [(item.name, _json(item.parameters)) for item in detector.detect_and_parse(text, tools).calls]


def _streamed(detector: Any, pieces: list[str], tools: list[Any]) -> list[tuple[str | None, Any]]:
    """Some detectors take one step for a piece, so that the rest comes with empty ones."""
    names: dict[int, str | None] = {}
    arguments: dict[int, str] = {}
    for piece in [*pieces, *[""] * 30]:
        for item in detector.parse_streaming_increment(piece, tools).calls:
            names[item.tool_index] = names.get(item.tool_index) or item.name
            arguments[item.tool_index] = arguments.get(item.tool_index, "") + item.parameters
    return [(names[index], _json(arguments[index])) for index in names]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def kinds(case: Case) -> set[str] | None:
    """The kinds of difference that explain the reply, none where both agree; None where nothing explains it."""
    found: set[str] = set()
    theirs = case.theirs
    if case.ours.error and not theirs:
        return {"malformed"}
    if theirs is None:
        return None
    at = 0
    for call in case.ours.written:
        if isinstance(call, MalformedCall):
            return found | {"malformed"}
        if at < len(theirs) and theirs[at] == (call.name, call.arguments):
            at += 1
        elif _tag_inside(case, call):
            return found | {"tag in a value"}
        elif at < len(theirs) and (values := _values(case, call, theirs[at])) is not None:
            found |= values
            at += 1
        elif rest := next((kind for kind in REST if REST[kind](case, call)), None):
            return found | {rest}
        elif call.name not in NAMES:
            found.add("unknown tool")
        else:
            return None
    if at == len(theirs):
        return found
    if case.streamed and case.detector == "qwen25" and re.search(r"(?<!<tool_call>)\n+\{", case.text):
        return found | {"streamed"}
    return found | {"stray tags"} if _stray_tags(case) else None


def _values(case: Case, call: ToolCall, theirs: tuple[str | None, Any]) -> set[str] | None:
    """The kinds that explain how the values of one call differ."""
    name, arguments = theirs
    if name != call.name or not isinstance(arguments, dict) or arguments.keys() != call.arguments.keys():
        return None
    found = set()
    for key, value in call.arguments.items():
        if arguments[key] == value:
            continue
        kind = next((kind for kind in VALUES if VALUES[kind](case, SCHEMAS.get(key), value, arguments[key])), None)
        if kind is None:
            return None
        found.add(kind)
    return found


def _stray_tags(case: Case) -> bool:
    """Whether the text has other tags than those of its calls."""
    calls = [call for call in case.ours.written if isinstance(call, ToolCall)]
    written = "".join(tool_format(case.format).render(calls)) if calls else ""  # type: ignore[misc]
    tags = [tag for tag in _bare(case.format) if "minimax:" not in tag]
    return any(case.text.count(tag) != written.count(tag) for tag in tags)


def _bare(format: str) -> set[str]:
    """The format's tags, without names and white space."""
    return {re.sub(r"(=\"?).*", r"\1", tag.strip()) for tag in TAGS[format]}


def _tag_inside(case: Case, call: ToolCall) -> bool:
    """In any of the turn's calls: a parser may have lost its way before."""
    held = [part for one in case.ours.calls for part in (one.name, *one.arguments, *map(str, one.arguments.values()))]
    return any(tag in part for tag in _bare(case.format) for part in held)


def _glm(case: Case) -> bool:
    return case.format.startswith("glm")


def _broken_in_a_stream(case: Case, call: ToolCall) -> bool:
    """What SGLang itself reads otherwise in a stream than as a whole."""
    values = call.arguments.values()
    if case.format == "minimax_m2":
        return not values or call.name not in NAMES or any(mark in str(value) for value in values for mark in "{}")
    if _glm(case):
        texts = [value for key, value in call.arguments.items() if SCHEMAS.get(key) == "string"]
        return len(texts) < len(values) or any("<" in text for text in texts)
    if case.format != "hermes":
        return False
    unknown = any(one.name not in NAMES for one in case.ours.calls)
    twice = any(
        case.text.count(f'"{key}"') > sum(key in one.arguments for one in case.ours.calls) for key in call.arguments
    )
    return unknown or twice or not values


def _spaced(case: Case, call: ToolCall) -> bool:
    """White space other than the models write it: ours strips names, and takes any between tags."""
    text, name = case.text, call.name
    match case.detector:
        case "glm45":
            return f"<tool_call>{name}\n" not in text or "\\n" in name
        case "glm47":
            return f"<tool_call>{name}<" not in text
        case "qwen3_coder":
            tags = [f"<function={name}>", *(f"<parameter={key}>" for key in call.arguments)]
            return any(tag not in text for tag in tags)
        case "qwen25":
            return text.count("<tool_call>\n") < text.count("<tool_call>") or text.count("\n</tool_") < text.count(
                "</tool_"
            )
    return False


# Of the rest of a turn from a call on.
REST: dict[str, Callable[[Case, ToolCall], bool]] = {
    "tag in a value": _tag_inside,
    "stray tags": lambda case, call: _stray_tags(case),
    "streamed": lambda case, call: case.streamed and _broken_in_a_stream(case, call),
    "white space": _spaced,
}
# Of one value: what the schema says, ours and SGLang's.
VALUES: dict[str, Callable[[Case, str | None, Any, Any], bool]] = {
    "null": lambda case, schema, ours, theirs: theirs is None and str(ours).strip().lower() in ("null", "none"),
    "no value of its type": lambda case, schema, ours, theirs: isinstance(ours, str) and schema not in (None, "string"),
    "JSON in a text": lambda case, schema, ours, theirs: _glm(case) and schema in (None, "string"),
    "newlines": lambda case, schema, ours, theirs: case.format == "minimax_m2" and theirs == str(ours).strip("\n"),
}
KINDS = ["malformed", "unknown tool", *REST, *VALUES]


@pytest.mark.parametrize(
    "replies",
    [500, pytest.param(10_000, marks=[pytest.mark.extended("random replies with tool calls"), pytest.mark.slow])],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("format", "detector"), FORMATS)
def test_every_difference_is_one_that_the_docs_list(sglang, format, detector, streamed, replies):
    counted: Counter[str] = Counter()
    for case in cases(sglang, format, detector, streamed, replies):
        found = kinds(case)
        assert found is not None, case
        counted.update(found or ["none"])
    assert counted["none"] > replies * (0.3 if (format, streamed) == ("minimax_m2", True) else 0.45), counted


def test_the_docs_list_every_kind():
    table = DOCS.read_text(encoding="utf-8").partition("| difference |")[2].partition("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == KINDS
