"""Whatever bytes a client sends, a dialect makes a request of them or refuses them, and soon."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from slime_swe.rollout.proxy.anthropic import AnthropicMessages
from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.conversation import Dialect, ProxyError, Request
from slime_swe.rollout.proxy.reading import load
from slime_swe.rollout.proxy.responses import Responses
from tests.effort import FACTOR, assert_linear, processor_seconds, yardstick
from tests.mutated_json import ODD_VALUES, change_bytes, change_values, places, put

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHAT = {
    "model": "policy",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Fix it \ud83d\ude42."},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "view", "arguments": '{"path":"a"}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x = 1"}]},
        {"role": "developer", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": {"name": "view", "description": "See.", "parameters": SCHEMA}}],
    "max_tokens": 4096,
    "temperature": 1.0,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
}
MESSAGES = {
    "model": "policy",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "view", "input": {"path": "a"}},
                {
                    "type": "tool_use",
                    "id": "b",
                    "name": "view",
                    "input": {"__unparsedToolInput": {"raw": "{", "len": 1}},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [{"type": "tool_reference", "tool_name": "edit"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "system", "content": "Mind the time."},
    ],
    "tools": [
        {"name": "view", "description": "See.", "input_schema": SCHEMA},
        {"name": "edit", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "max_tokens": 4096,
    "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
RESPONSES = {
    "model": "policy",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "find", "namespace": "mcp__docs__", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "*** Begin"},
        {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [
        {"type": "function", "name": "view", "parameters": SCHEMA},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "namespace", "name": "mcp__docs__", "tools": [{"type": "function", "name": "find"}]},
        {"type": "web_search"},
    ],
    "max_output_tokens": 4096,
    "stream": True,
    "reasoning": {"effort": "low"},
}
DIALECTS: list[tuple[Dialect, Any]] = [
    (ChatCompletions(), CHAT),
    (AnthropicMessages(), MESSAGES),
    (Responses(), RESPONSES),
]
every_dialect = pytest.mark.parametrize(("dialect", "honest"), DIALECTS, ids=["chat", "anthropic", "responses"])


def check(dialect: Dialect, body: bytes) -> bool:
    """Whether a request came of it; one that did is plain JSON, and so is a refusal."""
    try:
        request = dialect.parse(body)
    except ProxyError as error:
        assert error.kind == "invalid_request"
        orjson.loads(dialect.error(error))
        assert len(error.message) < 1000
        taken = False
    else:
        assert isinstance(request, Request)
        orjson.dumps([request.tools, request.sampling, request.model])
        "".join(message.text + message.call_id for message in request.messages).encode()
        "".join(call.id + call.name + call.arguments for one in request.messages for call in one.calls).encode()
        taken = True
    return taken


def fuzz(dialect: Dialect, honest: Any, count: int) -> None:
    dice = random.Random(5)
    assert check(dialect, json.dumps(honest).encode())
    taken = [
        check(dialect, dice.choice([change_values, change_values, change_bytes])(honest, dice)) for _ in range(count)
    ]
    assert count * 0.05 < sum(taken) < count * 0.95  # both ends are reached


@every_dialect
def test_a_spoilt_body_is_a_request_or_refused(dialect, honest) -> None:
    fuzz(dialect, honest, 1_000)


@every_dialect
def test_any_odd_value_in_any_place_is_taken_or_refused(dialect, honest) -> None:
    for number in range(len([*places(honest)])):
        for value in ODD_VALUES:
            check(dialect, put(honest, number, value))


@pytest.mark.slow
@pytest.mark.extended("tests/rollout/proxy/test_dialect_fuzz.py::test_a_spoilt_body_is_a_request_or_refused")
@every_dialect
def test_many_spoilt_bodies_are_requests_or_refused(dialect, honest) -> None:
    fuzz(dialect, honest, 10_000)


@every_dialect
@pytest.mark.parametrize(
    ("made", "size"),
    [
        pytest.param(lambda size: b'{"model":' * size, 60_000, id="deep"),
        pytest.param(lambda size: b'{"model":"' + rb"\ud83d" * size + b'"}', 12_500, id="halves of pairs"),
        pytest.param(lambda size: b'{"model":"' + rb"\\" * size + rb"\ud83d", 125_000, id="backslashes"),
        pytest.param(lambda size: b'{"model":' + b"9" * size + b"}", 250_000, id="a long number"),
        pytest.param(
            lambda size: b'{"model":"m","messages":[' + b"{}," * size + b"{}]}", 40_000, id="many empty messages"
        ),
        pytest.param(lambda size: b'{"model":"m","input":"' + b"x" * size + b'"}', 500_000, id="a long text"),
    ],
)
def test_a_body_made_to_be_slow_takes_time_that_grows_with_it(
    dialect, honest, made: Callable[[int], bytes], size: int
) -> None:
    bodies = {each: made(each) for each in (size, FACTOR * size)}
    assert_linear(lambda each: check(dialect, bodies[each]), size)


def test_a_turn_may_have_very_many_calls() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "x"}, *[call] * 6_000, {"role": "user", "content": "x"}]
    assert check(Responses(), orjson.dumps({"model": "m", "input": items}))


@every_dialect
def test_a_list_may_not_have_many_thousands(dialect, honest) -> None:
    key = "input" if "input" in honest else "messages"
    with pytest.raises(ProxyError, match=f"^{key}: a list of 10001 was given, one of at most 10000 is allowed$"):
        dialect.parse(json.dumps({"model": "m", key: [{}] * 10_001}).encode())


@every_dialect
@pytest.mark.parametrize("values", [[{}] * 60_000, [1] * 60_000, [["x"]] * 60_000, {f"k{n}": 0 for n in range(60_000)}])
def test_a_body_may_not_have_very_many_values(dialect, honest, values) -> None:
    with pytest.raises(ProxyError, match="of at most 50000 values"):
        dialect.parse(json.dumps({**honest, "more": values}).encode())


@every_dialect
def test_commas_brackets_and_quotes_in_texts_are_no_values(dialect, honest) -> None:
    assert check(dialect, json.dumps({**honest, "more": r'{"a": [1, 2, \\"]},' * 100_000}).encode())


@pytest.mark.parametrize("piece", [rb"\\", rb"\u0041", rb"\ud83d\ude00", rb"\\ud83d", rb"\n"])
def test_a_body_of_8_mib_with_half_a_pair_is_mended_in_the_time_of_some_loops(piece: bytes) -> None:
    """One search that counts backslashes at each place takes two to three times as long as is allowed here."""
    body = rb'{"model":"\ud83d' + piece * ((8 << 20) // len(piece)) + b'"}'
    assert load(body)
    assert min(processor_seconds(lambda: load(body)) for _ in range(3)) < 6 * yardstick()
