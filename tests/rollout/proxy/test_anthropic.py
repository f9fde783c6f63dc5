"""What clients of Anthropic's messages send, and what they are sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slime_swe.rollout.proxy.anthropic import AnthropicMessages
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from tests.rollout.proxy.dialects import VIEW, make_reply

DIALECT = AnthropicMessages()
USER = {"role": "user", "content": "Fix it."}
CACHED = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def parse(*messages: Any, **fields: Any) -> Request:
    return DIALECT.parse(orjson.dumps({"model": "policy", "messages": messages or [USER], **fields}))


def parse_turn(*blocks: Any) -> Message:
    return parse(USER, {"role": "assistant", "content": [*blocks]}, USER).messages[1]


def refusal(*messages: Any, **fields: Any) -> str:
    with pytest.raises(ProxyError) as caught:
        parse(*messages, **fields)
    assert caught.value.kind == "invalid_request"
    return caught.value.message


@pytest.mark.parametrize("system", ["Be brief.\nBe kind.", [text("Be brief.", **CACHED), text("Be kind.")]])
def test_the_system_prompt_comes_first(system) -> None:
    assert parse(system=system).messages[0] == Message("system", "Be brief.\nBe kind.")


@pytest.mark.parametrize("system", [None, "", [], [text("x-anthropic-billing-header: cc_version=2; cch=1f;")]])
def test_no_system_prompt_is_no_message(system) -> None:
    assert parse(system=system).messages == (Message("user", "Fix it."),)


def test_the_clients_line_of_accounting_is_not_for_the_policy() -> None:
    system = [text("x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"), text("You are Claude Code.", **CACHED)]
    assert parse(system=system).messages[0].text == "You are Claude Code."


def test_a_system_message_stays_where_it_is() -> None:
    messages = parse(USER, {"role": "system", "content": [text("Mind the time.")]}, USER).messages
    assert messages[1] == Message("system", "Mind the time.")


def test_results_come_before_the_text_beside_them() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "a", "content": "one", **CACHED},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("two"), text("lines")], "is_error": True},
        text("<system-reminder>"),
        {"type": "tool_result", "tool_use_id": "c"},
        text("Go on."),
    ]
    assert parse({"role": "user", "content": blocks}).messages == (
        Message("tool", "one", call_id="a"),
        Message("tool", "two\nlines", call_id="b"),
        Message("tool", "", call_id="c"),
        Message("user", "<system-reminder>\nGo on."),
    )


def test_results_alone_are_followed_by_no_user() -> None:
    blocks = [{"type": "tool_result", "tool_use_id": "a", "content": "one"}, text("")]
    assert parse({"role": "user", "content": blocks}).messages == (Message("tool", "one", call_id="a"),)


def test_a_turn_is_its_text_calls_and_thoughts() -> None:
    turn = parse_turn(
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "AAAA"},
        text("I "),
        text("look."),
        {"type": "tool_use", "id": "call_1", "name": "view", "input": {"path": "a.py"}, **CACHED},
    )
    assert turn == Message("assistant", "I look.", (VIEW,))


@pytest.mark.parametrize("kept", [{"raw": "{broken", "len": 7}, "{broken"])
def test_arguments_that_no_client_could_read_are_the_policys_own_text(kept) -> None:
    block = {"type": "tool_use", "id": "a", "name": "view", "input": {"__unparsedToolInput": kept}}
    assert parse_turn(block).calls == (MessageCall("a", "view", "{broken"),)


def test_an_image_is_refused_from_a_user_and_noted_in_a_result() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    assert refusal({"role": "user", "content": [text("See"), image]}) == (
        "messages[0].content[1].type: 'image' was given, 'text' or 'tool_result' is allowed"
    )
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    assert parse({"role": "user", "content": [result]}).messages[0].text == (
        "[image left out: this model reads text only]"
    )


def test_tools_that_anthropics_server_would_run_are_left_out() -> None:
    given = [
        {"name": "view", "description": "See.", "input_schema": {"type": "object"}, **CACHED},
        {"type": "custom", "name": "ls", "input_schema": {"type": "object"}},
        {"name": "pwd"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ]
    assert [tool["function"] for tool in parse(tools=given).tools] == [
        {"name": "view", "description": "See.", "parameters": {"type": "object"}},
        {"name": "ls", "description": "", "parameters": {"type": "object"}},
        {"name": "pwd", "description": "", "parameters": {"type": "object", "properties": {}}},
    ]


def test_a_deferred_tool_is_offered_by_the_result_that_refers_to_it() -> None:
    tools = [
        {"name": "view", "input_schema": {"type": "object"}},
        {"name": "edit", "input_schema": {"type": "object"}, "defer_loading": True},
    ]
    content = [text("Found:"), {"type": "tool_reference", "tool_name": "edit"}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": content}
    request = parse({"role": "user", "content": [result]}, tools=tools)
    assert [tool["function"]["name"] for tool in request.tools] == ["view"]
    assert request.messages[0].text == (
        'Found:\n<functions>\n<function>{"name":"edit","description":"","parameters":{"type":"object"}}</function>\n'
        "</functions>"
    )
    unknown = {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "x"}]}
    assert parse({"role": "user", "content": [unknown]}, tools=tools).messages[0].text == (
        "[tool_reference left out: this model reads text only]"
    )


def test_limits_streams_and_sampling() -> None:
    request = parse(max_tokens=5, stream=True, top_k=3, thinking={"type": "disabled"}, metadata={"user_id": "u"})
    assert (request.max_tokens, request.stream) == (5, True)
    assert request.sampling == {"top_k": 3, "thinking": {"type": "disabled"}}
    assert parse().max_tokens is None


def test_arguments_are_streamed_as_the_policy_wrote_them() -> None:
    arguments = '{ "path": "a.py",\n"line": 1e2 }'
    events = b"".join(DIALECT.events(parse(stream=True), make_reply("", MessageCall("a", "view", arguments))))
    deltas = [orjson.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: ")]
    assert [delta["delta"]["partial_json"] for delta in deltas if delta["type"] == "content_block_delta"] == [arguments]
    whole = DIALECT.reply(parse(), make_reply("", MessageCall("a", "view", arguments)))
    assert arguments.encode() in whole


@pytest.mark.parametrize("arguments", ["[1]", "null", "", "{", '{"a": NaN}', '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_are_given_as_one(arguments) -> None:
    reply = make_reply("", MessageCall("a", "view", arguments))
    (block,) = orjson.loads(DIALECT.reply(parse(), reply))["content"]
    assert block["input"] == {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}


@pytest.mark.parametrize("message", ["9000 tokens > 8192 maximum", "prompt is too long: 9000 tokens > 8192 maximum"])
def test_a_context_that_is_full_is_sent_as_claude_code_reads_it(message) -> None:
    reported = orjson.loads(DIALECT.error(ProxyError("context_length", message)))["error"]["message"]
    assert reported == "prompt is too long: 9000 tokens > 8192 maximum"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [{"role": "tool"}]}, "messages[0].role: 'tool' was given, 'user', 'assistant' or 'system' is"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content: an object was given, a string or a"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]: 1 was given, an object is"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": {}}]}]}, "messages[0].content[0].type: an object"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "x", "input": "{}"}]}]},
            "messages[0].content[0].input: '{}' was given, an object is allowed",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "{"}]}, "messages: the last message is the assistant's"),
        ({"messages": []}, "messages: no message was given"),
        ({"system": [{"type": "image"}]}, "system[0].type: 'image' was given, only 'text' is allowed"),
        ({"system": 1}, "system: 1 was given"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name: nothing was given, a string is allowed"),
        ({"tools": [{"name": "x", "input_schema": 1}]}, "tools[0].input_schema: 1 was given, a JSON schema"),
        ({"tools": [{"type": 1}]}, "tools[0].type: 1 was given"),
        ({"max_tokens": -5}, "max_tokens: -5 was given"),
        ({"temperature": []}, "temperature: a list of 0 was given, a number is allowed"),
    ],
)
def test_what_can_not_be_answered_is_refused_by_its_field(fields, message) -> None:
    assert refusal(**fields).startswith(message)
