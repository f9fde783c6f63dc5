"""What is read of a growing body is what the whole of it says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from slime_swe.rollout.proxy.anthropic import AnthropicMessages
from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.conversation import GrowingReader, ProxyError
from slime_swe.rollout.proxy.responses import Responses

_USED = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1, "]}"]}}
_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "out"}]}
_FOUND = {**_RESULT, "content": [*_RESULT["content"], {"type": "tool_reference", "tool_name": "late"}]}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
_TEXTS = [[{"type": "text", "text": "part"}], "plain", 'odd "]}, {", \\ text', "naïve 漢字"]
DIALECTS: dict[str, tuple[Any, str, dict[str, Any], list[list[dict[str, Any]]]]] = {
    "chat": (
        ChatCompletions(),
        "messages",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "stop": ["x"]},
        [
            [{"role": "assistant", "content": None, "tool_calls": [_CALL]}, {"role": "tool", "tool_call_id": "c1"}],
            [{"role": "assistant", "content": "I see."}],
        ],
    ),
    "anthropic": (
        AnthropicMessages(),
        "messages",
        {
            "max_tokens": 9,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [{"name": "f", "input_schema": {}}, {"name": "late", "input_schema": {}, "defer_loading": True}],
        },
        [
            [{"role": "assistant", "content": [_USED]}, {"role": "user", "content": [result]}]
            for result in (_RESULT, _FOUND)
        ],
    ),
    "responses": (
        Responses(),
        "input",
        {"instructions": "Be brief.", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
        [
            [
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "out"},
            ]
        ],
    ),
}


def bodies(name: str, chance: random.Random) -> list[bytes]:
    """Of a client that mostly appends, in one way of writing JSON."""
    _, key, more, turns = DIALECTS[name]
    indent, separators = chance.choice([(None, (",", ":")), (None, (", ", ": ")), (2, None)])
    first = chance.random() < 0.5
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix it."}]
    made = []
    for _ in range(12):
        fields = {key: messages, **more} if first else {**more, key: messages}
        body = {"model": "m", **fields, "stream": True}
        made.append(json.dumps(body, indent=indent, separators=separators, ensure_ascii=False).encode())
        messages = [*messages, *chance.choice(turns), {"role": "user", "content": chance.choice(_TEXTS)}]
        match chance.random():
            case x if x < 0.1:
                messages = [{**messages[0], "content": f"Fix that. {x}"}, *messages[1:]]
            case x if x < 0.2:
                more = {**more, "temperature": x}
            case x if x < 0.3:
                messages = messages[:1]
    return made


def read(reader: GrowingReader, body: bytes) -> Any:
    seen = reader.look(body)
    request = reader.parse(seen)
    reader.keep(seen, request)
    return request


@pytest.mark.parametrize("name", DIALECTS)
def test_it_reads_what_the_whole_body_says(name):
    dialect = DIALECTS[name][0]
    for seed in range(60):
        reader = GrowingReader(dialect)
        for body in bodies(name, random.Random(seed)):
            assert read(reader, body) == dialect.parse(body)


@pytest.mark.parametrize("name", DIALECTS)
def test_of_a_client_that_only_appends_no_more_than_the_news_is_parsed(name, monkeypatch):
    dialect, key, more, turns = DIALECTS[name]
    parsed: list[int] = []
    usual = type(dialect).parse
    monkeypatch.setattr(type(dialect), "parse", lambda self, body: (parsed.append(len(body)), usual(self, body))[1])
    reader, messages = GrowingReader(dialect), [{"role": "user", "content": "Fix it. " * 1000}]
    for _ in range(10):
        read(reader, json.dumps({"model": "m", key: messages, **more}).encode())
        messages = [*messages, *turns[0], {"role": "user", "content": "Go on."}]
    assert len(parsed) == 10
    assert all(size < 1000 for size in parsed[2:])


def test_a_result_that_offers_a_deferred_tool_shows_it_and_the_next_request_is_read_as_usual():
    dialect, key, more, (usual, found) = DIALECTS["anthropic"]
    messages, reader = [{"role": "user", "content": "Fix it."}], GrowingReader(dialect)
    asked, known = None, []
    for turn in (usual, usual, found, usual, usual):
        body = json.dumps({"model": "m", key: messages, **more}).encode()
        known.append(reader.look(body).added is not None)
        asked = read(reader, body)
        messages = [*messages, *turn]
    assert known == [False, False, True, False, True]
    assert '<function>{"name":"late",' in asked.messages[-3].text


@pytest.mark.parametrize("name", DIALECTS)
def test_a_body_that_ends_wrongly_is_refused_as_ever(name):
    dialect, key, more, turns = DIALECTS[name]
    messages, reader = [{"role": "user", "content": "Fix it."}], GrowingReader(dialect)
    for _ in range(3):
        read(reader, json.dumps({"model": "m", key: messages, **more}).encode())
        messages = [*messages, *turns[0], {"role": "user", "content": "Go on."}]
    wrong = [*messages, {"role": "wrong", "content": 3}]
    for body in (
        json.dumps({"model": "m", key: wrong, **more}),
        json.dumps({"model": "m", key: messages, **more})[:-1],
    ):
        with pytest.raises(ProxyError) as whole:
            dialect.parse(body.encode())
        with pytest.raises(ProxyError) as grown:
            read(reader, body.encode())
        assert grown.value.message == whole.value.message
    sound = json.dumps({"model": "m", key: messages, **more}).encode()
    assert read(reader, sound) == dialect.parse(sound)
