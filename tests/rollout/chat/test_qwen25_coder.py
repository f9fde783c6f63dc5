"""Qwen2.5-Coder's calls in all their forms, and what is none."""

from __future__ import annotations

import json
import random

import pytest

from slime_swe.rollout.chat.qwen25_coder import EXAMPLE, FORMS
from slime_swe.rollout.chat.tool_formats import MalformedCall, ToolCall, parse, tool_format
from slime_swe.rollout.tools import TOOLS
from tests.rollout.chat import quoted_json
from tests.rollout.chat.forms import WRITERS

SCHEMAS = [tool.spec.schema() for tool in TOOLS]
VIEW, LIST = ToolCall("view", {"path": "a.py"}), ToolCall("bash", {"command": "ls\n```\ncat <<'E'"})


def read(text: str):
    return parse(text, "qwen25_coder", SCHEMAS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", ["", "I look.\n", "I look:\n\n"])
def test_a_call_is_read_in_each_form_which_it_says(form, before):
    turn = read(before + WRITERS[form](VIEW, LIST))
    assert turn.text_before in (before, before + "```xml\n") and turn.written == [VIEW, LIST]
    assert [call.form for call in turn.written] == [form, form]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n[{"name": "view", "arguments": {"path": "a.py"}}]\n```',
        '```JSON\n\n{\n  "arguments": {"path": "a.py"},\n  "name": "view"\n}\n\n```\nThis shows the file.',
        '```\n{"name": "view", "arguments": {"path": "a.py"}}\n```',
        '  ````json\n{"name": "view", "arguments": {"path": "a.py"}}\n````',
        '<tools>[{"name": "view", "arguments": {"path": "a.py"}}]</tools>',
        '```xml\n<tools>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tools>\n```',
        '```xml\n<tool_call>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>\n```',
        '```json\n{"name": "view", "arguments": {"path": "a.py"}}',  # the turn ends with it
        '```python\nx = 1\n```\nSo:\n```json\n{"name": "view", "arguments": {"path": "a.py"}}\n```',
    ],
)
def test_ways_of_writing_one_call(text):
    assert read(text).written == [VIEW]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('```json\n{"name": "view", "arguments": {"path": "a.py"}}\n```\n{"name": "submit", "arguments": {}}', 2),
        (
            '<tool_call>{"name": "view"}</tool_call>\n```json\n{"name": "submit", "arguments": {}}\n```',
            2,
        ),
        ('{"name": "nothing", "arguments": {}}', 0),
        ('<tools>{"name": "nothing", "arguments": {}}</tools>', 0),
        ('<tool_call>{"name": "nothing", "arguments": {}}</tool_call>', 1),
    ],
)
def test_forms_may_be_mixed_and_only_hermes_s_tags_make_a_call_of_an_unknown_name(text, written):
    turn = read(text)
    assert (len(turn.calls), turn.error) == (written, None)


@pytest.mark.parametrize(
    ("text", "name", "arguments", "error"),
    [
        ('```json\n{"name": "view", "arguments": {"path": "a.py"}\n```', "view", {"path": "a.py"}, "not valid JSON"),
        ('```json\n{"name": "bash", "arguments": {"command": "a\nb"}}\n```', "bash", None, "Invalid control character"),
        ('{"name": "bash", "arguments": {"command": "true; tr', "bash", '{"command": "true; tr', "not valid JSON"),
        ('```json\n{"name": "bash", "arguments": "ls"}\n```', "bash", '"ls"', "must be an object, got str"),
        ('{"name": "submit"}', "submit", "", 'has no "arguments"'),
        ('<tools>\n{"name": "view", "arguments": {"path": "a.py"}}\n', "view", {"path": "a.py"}, "end in </tools>"),
        (
            '{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>',
            "view",
            {"path": "a.py"},
            "without <tool_call>",
        ),
        ('<tool_call>{"name": "view"', "view", "", "not valid JSON"),
    ],
)
def test_what_is_meant_as_a_call_and_is_none_is_answered_with_the_form(text, name, arguments, error):
    (call,) = read(text).written
    assert isinstance(call, MalformedCall) and call.form in FORMS
    assert (call.name, arguments if arguments is not None else call.arguments) == (name, call.arguments)
    assert error in call.error and call.error.endswith(EXAMPLE)


@pytest.mark.parametrize("form", ["fenced", "bare", "tools", "function_call"])
def test_where_anything_else_stands_beside_a_call_there_is_none_but_for_a_broken_one(form):
    written = WRITERS[form](VIEW, VIEW)
    one = json.dumps({"name": "view", "arguments": VIEW.arguments})
    for beside in ('{"ok": true}', "# so", "[]"):
        assert read(written.replace(f"{one}\n{one}", f"{one}\n{beside}")).written == []
    turn = read(written.replace(f"{one}\n{one}", f"{one}\n{one[:-1]}"))
    assert turn.calls == [VIEW] and "not valid JSON" in turn.error and len(turn.written) == 2


def test_without_tools_only_hermes_s_tags_make_a_call():
    for form, write in WRITERS.items():
        assert bool(parse(write(VIEW), "qwen25_coder").written) == (form == "tool_call")


def test_no_reply_that_quotes_is_a_call():
    rng = random.Random(37)
    for number in range(10_000):
        text = quoted_json.reply(rng)
        turn = read(text)
        assert (turn.written, turn.text_before) == ([], text), (number, text)
        assert parse(text, "bash_block", SCHEMAS).written == []


def test_a_call_among_what_is_quoted_is_the_only_one():
    rng = random.Random(38)
    for number in range(3_000):
        quoted = [part for part in quoted_json.parts(rng) if part != "```"]
        form = rng.choice(FORMS)
        call = ToolCall("bash", {"command": rng.choice(["ls", "cat <<'E'\n```json\n{}\n```\nE", '{"name": "view"}'])})
        at = len(quoted) if form == "bare" else rng.randint(0, len(quoted))
        text = "\n\n".join([*quoted[:at], WRITERS[form](call), *quoted[at:]])
        turn = read(text)
        assert (turn.written, [one.form for one in turn.written]) == ([call], [form]), (number, text)


def test_the_example_is_a_call_and_others_calls_are_written_as_the_template_writes_them():
    format = tool_format("qwen25_coder")
    (call,) = read(EXAMPLE).written
    assert call == ToolCall("bash", {"command": "ls"}) and EXAMPLE in format.reminder
    written = "".join(format.render([VIEW]))
    assert written == f"<tool_call>\n{json.dumps({'name': 'view', 'arguments': VIEW.arguments})}\n</tool_call>"
