"""Chat templates for whatever tools clients bring."""

from __future__ import annotations

import json

import pytest

from slime_swe.rollout.chat.tokenizer import TemplateError
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ToolCall, parse, tool_format
from slime_swe.rollout.proxy.conversation import Message, MessageCall
from slime_swe.rollout.proxy.templates import Templates
from tests.rollout.conftest import CHATML, make_tokenizer

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}}
TOOLS = ({"type": "function", "function": {"name": "view", "parameters": SCHEMA}},)


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


@pytest.mark.parametrize("format", [name for name in TOOL_FORMATS if tool_format(name).render])
def test_a_turn_of_nobody_s_has_the_calls_as_the_format_writes_them(tokenizer, format):
    calls = [MessageCall("", "view", '{"path": "a.py", "line": 3}'), MessageCall("", "submit", "{}")]
    text = Templates(tokenizer, format).decode(
        Templates(tokenizer, format).turn(Message("assistant", "So.", tuple(calls)))
    )
    wanted = [ToolCall("view", {"path": "a.py", "line": 3}), ToolCall("submit", {})]
    assert text == "So.\n" + "".join(tool_format(format).render(wanted))
    assert parse(text, format, TOOLS).written == wanted


def test_a_format_that_can_write_one_tool_s_calls_alone_is_for_no_client(tokenizer):
    with pytest.raises(TemplateError, match="bash_block: calls can be read but not written"):
        Templates(tokenizer, "bash_block")


def test_a_template_that_tells_tools_in_later_turns_is_refused():
    later = CHATML.replace('{{- "<|im_start|>" + message.role', '{{- "<|im_start|>" + (tools | tojson) + message.role')
    with pytest.raises(TemplateError, match="rule '"):
        Templates(make_tokenizer(later), "hermes").of(TOOLS)
