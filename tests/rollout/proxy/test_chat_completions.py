"""What clients of chat completions send, and what they are sent."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from tests.rollout.proxy.dialects import LONG, VIEW, make_reply

DIALECT = ChatCompletions()
USER = {"role": "user", "content": "Fix it."}


def parse(*messages: Any, **fields: Any) -> Request:
    return DIALECT.parse(orjson.dumps({"model": "policy", "messages": list(messages or [USER]), **fields}))


def parse_raw(body: bytes) -> Request:
    return DIALECT.parse(body)


def parse_turn(**fields: Any) -> Message:
    """An assistant's message, as history."""
    return parse(USER, {"role": "assistant", **fields}, USER).messages[1]


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_content_that_is_not_there_is_empty(content) -> None:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "view", "arguments": '{"path":"a.py"}'}}]
    assert parse_turn(**content, tool_calls=calls) == Message("assistant", "", (VIEW,))
    assert parse(USER, {"role": "tool", **content}, USER).messages[1] == Message("tool", "")


def test_parts_of_a_prompt_are_lines_and_parts_of_a_reply_are_pieces() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert parse_turn(content=parts).text == "ab"
    for role in ("user", "tool", "system", "developer"):
        assert parse({"role": role, "content": parts}, USER).messages[0].text == "a\nb"


def test_a_developer_is_a_system() -> None:
    assert parse({"role": "developer", "content": "Be brief."}, USER).messages[0] == Message("system", "Be brief.")


def test_results_say_which_call_they_answer() -> None:
    given = {"role": "tool", "tool_call_id": "call_1", "name": "view", "content": "text"}
    assert parse(USER, given).messages[1] == Message("tool", "text", call_id="call_1")


def test_arguments_are_kept_as_they_were_written() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "view", "arguments": '{ "b": 1,\n"a": 2 }'}},
        {"id": "2", "function": {"name": "view", "arguments": "{broken"}, "provider_specific_fields": None},
        {"id": None, "function": {"name": "view", "arguments": None}},
        {"id": "4", "function": {"name": "view", "arguments": {"b": 1}}},
    ]
    assert parse_turn(tool_calls=calls, function_call=None).calls == (
        MessageCall("1", "view", '{ "b": 1,\n"a": 2 }'),
        MessageCall("2", "view", "{broken"),
        MessageCall("", "view", ""),
        MessageCall("4", "view", '{"b":1}'),
    )


def test_an_image_is_refused_from_a_user_and_noted_in_a_result() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(ProxyError) as caught:
        parse({"role": "user", "content": [{"type": "text", "text": "See"}, image]})
    assert caught.value.message == "messages[0].content[1].type: 'image_url' was given, only 'text' is allowed"
    result = parse(USER, {"role": "tool", "content": [{"type": "text", "text": "See"}, image]}).messages[1]
    assert result.text == "See\n[image_url left out: this model reads text only]"


def test_a_tool_without_parameters_takes_none() -> None:
    given = [
        {"type": "function", "function": {"name": "ls"}},
        {"type": "function", "function": {"name": "cd", "description": "Go.", "parameters": {"type": "object"}}},
    ]
    assert [tool["function"] for tool in parse(tools=given).tools] == [
        {"name": "ls", "description": "", "parameters": {"type": "object", "properties": {}}},
        {"name": "cd", "description": "Go.", "parameters": {"type": "object"}},
    ]


def test_limits_streams_and_sampling() -> None:
    request = parse(
        max_tokens=5, max_completion_tokens=6, stream=True, temperature=0.5, stop=["x"], seed=None, user="u"
    )
    assert (request.max_tokens, request.stream, request.sampling) == (6, True, {"temperature": 0.5, "stop": ["x"]})
    plain = parse(max_tokens=5, max_completion_tokens=None, stream=None)
    assert (plain.max_tokens, plain.stream, plain.sampling) == (5, False, {})


def test_usage_ends_a_stream_only_where_it_was_asked_for() -> None:
    def chunks(**fields: Any) -> list[Any]:
        events = [*DIALECT.events(parse(stream=True, **fields), make_reply("Hello."))]
        assert events[-1] == b"data: [DONE]\n\n"
        return [orjson.loads(event.removeprefix(b"data: ")) for event in events[:-1]]

    assert not any("usage" in chunk for chunk in chunks())
    assert not any("usage" in chunk for chunk in chunks(stream_options={"include_usage": False}))
    assert chunks(stream_options={"include_usage": True})[-1]["usage"]["total_tokens"] == 1020


def test_a_call_is_streamed_as_its_name_and_then_its_arguments() -> None:
    events = [
        *DIALECT.events(
            parse(stream=True), make_reply("", MessageCall("call_1", "view", '{"path":"' + "a" * 300 + '"}'))
        )
    ]
    deltas = [orjson.loads(event[6:])["choices"][0]["delta"] for event in events[:-2]]
    (opened,) = deltas[0]["tool_calls"]
    assert opened == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "view", "arguments": ""}}
    pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[1:]]
    assert [*map(len, pieces)] == [256, 55]


def test_no_event_holds_what_some_clients_take_for_the_end_of_a_line() -> None:
    for event in DIALECT.events(parse(stream=True), make_reply(LONG)):
        assert len(event.decode().splitlines()) == 2


def test_an_empty_assistant_message_at_the_end_is_dropped() -> None:
    assert parse(USER, {"role": "assistant", "content": ""}).messages == (Message("user", "Fix it."),)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud83d\ude00 \ud83d, \udc80 \\ud83d \\\udc80", "😀 \ufffd, \ufffd \\ud83d \\\ufffd"),
        (r"\ud83d\ud83d\ude00\ude00", "\ufffd😀\ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),  # an escaped backslash, some letters, and half a pair
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
        (r"\\\ud83d\\\\ude00\\", "\\\ufffd\\\\ude00\\"),
        (r"\uD83D\uDE00\uD83D\"", '😀\ufffd"'),
    ],
)
def test_half_a_surrogate_pair_is_replaced(escaped: str, text: str) -> None:
    body = rf'{{"model": "m", "messages": [{{"role": "user", "content": "{escaped}"}}]}}'.encode()
    assert parse_raw(body).messages[0].text == text


def test_a_body_that_holds_a_nul_is_refused() -> None:
    with pytest.raises(ProxyError, match="is not JSON"):
        parse_raw(b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d\0\0n"}]}')


def test_a_key_that_is_given_twice_has_its_last_value() -> None:
    assert parse_raw(b'{"model":"a","model":"m","messages":[{"role":"user","content":"x"}]}').model == "m"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON in UTF-8"),
        (b"\xff", "the body is not JSON in UTF-8"),
        (b'{"model": NaN}', "the body is not JSON in UTF-8"),
        (b'{"temperature": 1e999}', "the body is not JSON in UTF-8"),
        (b"[" * 100_000, "the body is not JSON in UTF-8"),
        (b"[1]", "the body: a list of 1 was given, a JSON object is allowed"),
        (b'"text"', "the body: 'text' was given, a JSON object is allowed"),
        (b"null", "the body: nothing was given, a JSON object is allowed"),
    ],
)
def test_bytes_that_are_no_request_are_refused(body, message) -> None:
    with pytest.raises(ProxyError) as caught:
        parse_raw(body)
    assert caught.value.status == 400
    assert caught.value.message.startswith(message)


DEEP = orjson.loads(b'{"a":' * 300 + b"1" + b"}" * 300)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model: nothing was given, a string is allowed"),
        ({"model": ""}, "model: '' was given, a name that is not empty is allowed"),
        ({"messages": None}, "messages: no message was given, at least one is needed"),
        ({"messages": "x"}, "messages: 'x' was given, a list of objects is allowed"),
        ({"messages": [USER, 1]}, "messages[1]: 1 was given, an object is allowed"),
        ({"messages": [{"role": "cat"}]}, "messages[0].role: 'cat' was given, 'system', 'developer', 'user', "),
        ({"messages": [{"role": ["user"]}]}, "messages[0].role: a list of 1 was given"),
        ({"messages": [{"role": "user", "content": 1.5}]}, "messages[0].content: 1.5 was given, a string or a list"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]: 'x' was given, an object"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: nothing was"),
        ({"messages": [{"role": "tool", "tool_call_id": 1}]}, "messages[0].tool_call_id: 1 was given"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function: nothing was"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls: an object was given"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call: an object was given"),
        ({"messages": [USER, {"role": "assistant", "content": "I"}]}, "messages: the last message is the assistant's"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type: 'custom' was given, only 'function'"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters: a list of 0 was"),
        ({"tools": [{"function": {"name": "f", "parameters": DEEP}}]}, "tools[0].function.parameters: nested deeper"),
        ({"tools": [{"function": {"name": "f"}}] * 2}, "tools: 'f' was given, each name once is allowed"),
        ({"max_tokens": 0}, "max_tokens: 0 was given, a whole number of tokens, 1 or more, is allowed"),
        ({"max_tokens": True}, "max_tokens: true was given"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens: '5' was given"),
        ({"stream": 1}, "stream: 1 was given, true, false or null is allowed"),
        ({"stream_options": []}, "stream_options: a list of 0 was given, an object is allowed"),
        ({"temperature": "hot"}, "temperature: 'hot' was given, a number is allowed"),
        ({"response_format": DEEP}, "response_format: nested deeper than 240 levels"),
        ({"n": 2}, "n: 2 was given, one choice (1) is allowed"),
        ({"logprobs": True}, "logprobs: true was given, false (the proxy gives out no log-probabilities) is allowed"),
        ({"top_logprobs": 5}, "top_logprobs: 5 was given"),
        ({"audio": {"voice": "x"}}, "audio: an object was given"),
        ({"modalities": ["text", "audio"]}, "modalities: a list of 2 was given"),
        ({"functions": [{}]}, "functions: a list of 1 was given"),
        (
            {"model": "m" * 10**6, "messages": [{"role": "m" * 10**6}]},
            "messages[0].role: '" + "m" * 60 + "…' was given",
        ),
    ],
)
def test_what_can_not_be_answered_is_refused_by_its_field(fields, message) -> None:
    with pytest.raises(ProxyError) as caught:
        parse_raw(json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    assert caught.value.kind == "invalid_request"
    assert caught.value.message.startswith(message)
    assert len(DIALECT.error(caught.value)) < 1000
