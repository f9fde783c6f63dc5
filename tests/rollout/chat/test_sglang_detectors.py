"""SGLang's own parsers as tool formats, with SGLang's own code."""

from __future__ import annotations

import json
from math import isqrt

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.chat import tool_formats
from slime_swe.rollout.chat.tokenizer import TemplateError
from slime_swe.rollout.chat.tool_formats import (
    MAX_TURN_OF_SGLANG,
    ToolCall,
    ToolFormat,
    parse,
    sglang_format,
    tool_format,
)
from slime_swe.rollout.proxy.templates import Templates
from tests.effort import FACTOR, assert_linear
from tests.rollout.chat.sglang_parsers import NEEDS, installed, sglang_parsers
from tests.rollout.conftest import make_tokenizer

pytestmark = pytest.mark.skipif(not installed(), reason=f"needs SGLang's wheel: {NEEDS}")

PROPERTIES = {"path": {"type": "string"}, "line": {"type": "integer"}}
TOOLS = [{"type": "function", "function": {"name": "view", "parameters": {"type": "object", "properties": PROPERTIES}}}]
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.view:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
# What can be written too, as SGLang says how; the others are for the native agent alone.
WRITTEN = {
    *("apertus2509", "cohere_command4", "deepseekv3", "kimi_k2", "llama3", "mistral"),
    *("qwen", "qwen25", "trinity", "interns1", "hermes"),
}


@pytest.fixture(scope="module")
def detectors():
    with sglang_parsers() as module:
        yield module.FunctionCallParser.ToolCallParserEnum


@pytest.fixture
def found(detectors):
    """What `tool_format` remembers is forgotten with SGLang's modules."""
    yield tool_format
    tool_format.cache_clear()


def test_a_turn_is_read_as_sglang_reads_it(found):
    text = "I look." + KIMI.format(json.dumps({"path": "a.py", "line": 3}))
    turn = parse(text, "sglang.kimi_k2", TOOLS)
    assert (turn.text_before, turn.written) == ("I look.", [ToolCall("view", {"path": "a.py", "line": 3})])
    assert parse("Just text", "sglang.kimi_k2", TOOLS).written == []


@pytest.mark.parametrize(
    ("format", "text", "tools"),
    [
        ("sglang.hermes", '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>', TOOLS),
        ("sglang.kimi_k2", KIMI.format("{}")[:-60], TOOLS),
        ("sglang.qwen25", '<tool_call>\n["a"]\n</tool_call>', TOOLS),  # in which SGLang's own code raises
        ("sglang.hermes", "<tool_call>{</tool_call>", TOOLS),
        ("sglang.qwen25", '<tool_call>\n{"name": "view", "arguments": [1]}\n</tool_call>', TOOLS),
        ("sglang.hermes", "<tool_call>" + "[" * 20_000, TOOLS),
        ("sglang.hermes", "<tool_call>" * MAX_TURN_OF_SGLANG, TOOLS),
    ],
)
def test_a_turn_of_which_sglang_makes_nothing_is_malformed(found, format, text, tools):
    turn = parse(text, format, tools)
    assert turn.calls == []
    assert turn.error


def test_every_parser_of_sglang_is_a_format(detectors, found):
    formats = {name: found(f"sglang.{name}") for name in detectors}
    assert {name for name, format in formats.items() if format.render} == WRITTEN
    calls = [ToolCall("view", {"path": "a\n", "line": 3})]
    for format in formats.values():
        assert isinstance(format, ToolFormat)
        assert format.parse("Just text.", TOOLS).written == []
        if format.render:
            assert format.parse("".join(format.render(calls)), TOOLS).written == calls


@pytest.mark.parametrize(
    "schema", [None, {}, {"type": "object"}, {"properties": []}, {"properties": {"path": True}}, {"type": 3}, [1], "x"]
)
def test_no_schema_of_a_client_s_makes_a_parser_raise(detectors, found, schema):
    tools = [{"type": "function", "function": {"name": "view", "parameters": schema}}]
    for name in ("kimi_k2", "glm47", "qwen3_coder", "minimax-m2", "hermes"):
        assert isinstance(parse("<tool_call>view</tool_call>", f"sglang.{name}", tools).written, list)
        assert isinstance(parse(KIMI.format("{}"), f"sglang.{name}", tools).written, list)


@pytest.mark.parametrize(("name", "piece"), [("glm47", "<tool_call>"), ("llama3", '<|python_tag|>{"name":')])
def test_a_hostile_turn_takes_time_in_the_square_of_its_length_and_a_longer_one_none(
    detectors, found, monkeypatch, name, piece
):
    """The slowest of SGLang's parsers."""
    most, read = MAX_TURN_OF_SGLANG // len(piece), []
    assert_linear(lambda square: parse(piece * isqrt(square), f"sglang.{name}", TOOLS), most**2 // FACTOR, name)
    monkeypatch.setattr(detectors[name], "detect_and_parse", lambda self, text, tools: read.append(text))
    turn = parse(piece * (most + 1), f"sglang.{name}", TOOLS)
    assert turn.error
    assert not read


def test_a_name_that_sglang_has_not_is_refused_with_those_that_it_has(found):
    with pytest.raises(UserError, match="Did you mean 'kimi_k2'"):
        sglang_format("sglang.kimik2")


def test_where_sglang_is_missing_the_error_says_so(monkeypatch):
    monkeypatch.setattr(tool_formats, "_MODULE", "no_such_sglang.parser")
    with pytest.raises(UserError, match="can't be imported here"):
        sglang_format("sglang.kimi_k2")


def test_a_format_without_a_writer_is_refused_for_agents_behind_the_proxy(found):
    with pytest.raises(TemplateError, match="can be read but not written"):
        Templates(make_tokenizer(), "sglang.pythonic")
    assert Templates(make_tokenizer(), "sglang.kimi_k2")
