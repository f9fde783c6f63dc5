"""Llama's tool calls, which have no tags, and what is none."""

from __future__ import annotations

import json

import pytest

from slime_swe.rollout.chat.tool_formats import MOST_CALLS, MalformedCall, ToolCall, parse, tool_format
from slime_swe.rollout.tools import TOOLS

SCHEMAS = [tool.spec.schema() for tool in TOOLS]
VIEW = ToolCall("view", {"path": "a.py"})
WRITTEN = '{"name": "view", "parameters": {"path": "a.py"}}'


def read(text: str):
    return parse(text, "llama3", SCHEMAS)


@pytest.mark.parametrize("before", ["", "I look.\n", "I look:\n\n  "])
@pytest.mark.parametrize(
    "call",
    [
        WRITTEN,
        '{\n  "parameters": {"path": "a.py"},\n  "name": "view"\n}',
        '{"type": "function", "name": "view", "parameters": {"path": "a.py"}}',
        f"<|python_tag|>{WRITTEN}",
        f"{WRITTEN}\n\nThis shows the file.",
    ],
)
def test_ways_of_writing_one_call(before, call):
    turn = read(before + call)
    assert turn.written == [VIEW]
    assert turn.text_before == before


@pytest.mark.parametrize("between", ["; ", ";", " ;\n", "\n", "\nand then\n"])
def test_several_calls_of_a_turn(between):
    assert read(f"So.\n{WRITTEN}{between}{WRITTEN}").written == [VIEW, VIEW]


def test_no_more_calls_are_read_than_a_turn_may_have():
    assert len(read("; ".join([WRITTEN] * 2 * MOST_CALLS)).written) == MOST_CALLS


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "package", "version": "1"}',
        '{"name": "other_api", "parameters": {"q": 1}}',
        '{"name": "view", "description": "Shows a file", "parameters": {"type": "object"}}',
        '{"type": "object", "name": "view", "parameters": {}}',
        f"Write {WRITTEN} to see it.",
        '{"name": "view"',
        '{"name": 3, "parameters": {}}',
        "{'name': 'view', 'parameters': {}}",
        f"{{}}; {WRITTEN}",
    ],
)
def test_what_is_quoted_is_no_call(text):
    assert read(text).written == []
    assert read(text).text_before == text


@pytest.mark.parametrize("before", ["<|python_tag|>", f"{WRITTEN}; "])
def test_where_nothing_but_a_call_can_stand_any_name_is_one(before):
    assert read(before + '{"name": "search", "parameters": {"q": "x"}}').calls[-1] == ToolCall("search", {"q": "x"})


@pytest.mark.parametrize(
    ("text", "name", "arguments", "error"),
    [
        ('{"name": "view", "parameters": {"path": "a', "view", '{"path": "a', "not valid JSON"),
        ('{"type": "function", "name": "view", "parameters": {', "view", "{", "not valid JSON"),
        ('{"name": "view", "parameters": "a.py"}', "view", '"a.py"', "must be an object, got str"),
        ('{"name": "view", "arguments": {"path": 1}}', "view", '{"path": 1}', '"parameters" is missing'),
        ('{"name": "view"}', "view", '""', '"parameters" is missing'),
        ('<|python_tag|>view.call(path="a")', "", 'view.call(path="a")', "not valid JSON"),
        ('<|python_tag|>{"path": "a"}', "", '{"path": "a"}', '{"name": string, "parameters": object}'),
        (f'{WRITTEN}; {{"name": "search", "parameters": [', "search", "[", "not valid JSON"),
    ],
)
def test_the_error_of_a_malformed_call_shows_the_form(text, name, arguments, error):
    call = read(text).written[-1]
    assert isinstance(call, MalformedCall)
    assert (call.name, call.arguments) == (name, arguments)
    assert error in call.error and tool_format("llama3").reminder in call.error


def test_objects_that_cannot_be_read_hide_no_call_behind_a_few_of_them():
    assert read('{"name": oops}\n' * 3 + WRITTEN).written == [VIEW]


def test_calls_of_others_are_written_as_they_are_read():
    calls = [VIEW, ToolCall("bash", {"command": 'echo "{}; ü"\n'})]
    rendered = tool_format("llama3").render(calls)
    assert [json.loads(text)["name"] for text in rendered[1::2]] == ["view", "bash"]
    assert read("".join(rendered)).written == calls
