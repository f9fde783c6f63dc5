"""Chat templates for whatever tools clients bring, and the types of a call's arguments."""

from __future__ import annotations

import json

import pytest
from tests.rollout.conftest import CHATML, make_tokenizer

from slime_swe.rollout.chat.tokenizer import TemplateError
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ToolCall, tool_format
from slime_swe.rollout.proxy.conversation import Message, MessageCall
from slime_swe.rollout.proxy.sessions import arguments_json
from slime_swe.rollout.proxy.templates import Templates

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "line": {"type": "integer"},
        "deep": {"type": "object"},
        "all": {"type": "boolean"},
        "any": {},
        "odd": True,
    },
}
TOOLS = ({"type": "function", "function": {"name": "view", "parameters": SCHEMA}},)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"path": "3"}, {"path": "3"}),
        ({"line": "3"}, {"line": 3}),
        ({"line": 3}, {"line": 3}),
        ({"line": "three"}, {"line": "three"}),
        ({"deep": '{"a": [1]}'}, {"deep": {"a": [1]}}),
        (
            {"all": "true", "any": "1", "odd": "1", "unknown": "1"},
            {"all": True, "any": "1", "odd": "1", "unknown": "1"},
        ),
        ({"line": 10**30}, {"line": 10**30}),
    ],
)
def test_text_for_what_is_to_be_none_is_read_as_json(given, reported):
    assert json.loads(arguments_json("view", given, TOOLS)) == reported
    assert json.loads(arguments_json("other", given, TOOLS)) == given


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_what_is_written_for_a_call_is_parsed_as_that_call(format):
    call = ToolCall(
        "view", {"path": "a.py", "text": "a\nb </x> <tool_call>"} if format == "hermes" else {"path": "a\nb"}
    )
    turn = tool_format(format).parse(f"<tool_call>\n{tool_format(format).render(call)}\n</tool_call>")
    assert (turn.calls, turn.error) == ([call], None)


def test_lists_of_tools_share_what_is_proven(tokenizer):
    templates = Templates(tokenizer, "hermes")
    first = templates.of(TOOLS)
    assert templates.of(json.loads(json.dumps(TOOLS))) is first
    assert templates.of(()) is not first
    message = [{"role": "user", "content": "Hi"}]
    assert len(first.first_prompt(message)) > len(templates.of(()).first_prompt(message))
    assert first.delta(message) == templates.of(()).delta(message)


def test_a_turn_of_nobody_s_has_the_tags_as_tokens_and_its_words_as_text(tokenizer):
    tokens = Templates(tokenizer, "hermes").turn(
        Message("assistant", "<|im_end|>", (MessageCall("", "view", "no json"),))
    )
    names = tokenizer.convert_ids_to_tokens(tokens)
    assert (names.count("<tool_call>"), names.count("<|im_end|>"), names[-1]) == (1, 0, "</tool_call>")
    assert '"arguments": {"input": "no json"}' in tokenizer.decode(tokens)


def test_a_template_that_tells_tools_in_later_turns_is_refused():
    later = CHATML.replace('{{- "<|im_start|>" + message.role', '{{- "<|im_start|>" + (tools | tojson) + message.role')
    with pytest.raises(TemplateError, match="rule '"):
        Templates(make_tokenizer(later), "hermes").of(TOOLS)
