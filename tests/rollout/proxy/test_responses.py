"""What clients of responses send, and what they are sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from slime_swe.rollout.proxy.responses import Responses
from tests.rollout.proxy.dialects import RUN, VIEW, make_reply

DIALECT = Responses()
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]}
ASKED = Message("user", "Fix it.")
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: begin"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": GRAMMAR}
DOCS = {
    "type": "namespace",
    "name": "mcp__docs__",
    "description": "Docs.",
    "tools": [{"type": "function", "name": "find"}],
}


def parse(*items: Any, **fields: Any) -> Request:
    return DIALECT.parse(orjson.dumps({"model": "policy", "input": items or [USER], **fields}))


def said(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}


def called(call: MessageCall, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments, **more}


def answered(call_id: str, output: Any = "text") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "encrypted_content": None, **fields}


def events_of(request: Request, *calls: MessageCall, text: str = "") -> list[Any]:
    lines = b"".join(DIALECT.events(request, make_reply(text, *calls))).splitlines()
    return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def test_input_may_be_one_text() -> None:
    request = DIALECT.parse(b'{"model":"m","input":"Fix it.","instructions":"Be brief."}')
    assert request.messages == (Message("system", "Be brief."), ASKED)


def test_messages_have_four_roles_and_need_no_type() -> None:
    messages = parse({"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, USER).messages
    assert messages == (Message("system", "a"), Message("system", "b"), ASKED)


def test_the_items_of_one_reply_follow_each_other_and_reasoning_is_left_out() -> None:
    summary = [{"type": "summary_text", "text": "Hm."}]
    items = [thought(summary=summary), said("Both."), called(VIEW), called(RUN), answered("call_2"), answered("call_1")]
    assert parse(USER, *items).messages == (
        ASKED,
        Message("assistant", "Both."),
        Message("assistant", "", (VIEW,)),
        Message("assistant", "", (RUN,)),
        Message("tool", "text", call_id="call_2"),
        Message("tool", "text", call_id="call_1"),
    )


def test_results_may_be_lists_and_images_in_them_are_noted() -> None:
    output = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "data:"}]
    assert parse(USER, called(VIEW), answered("call_1", output)).messages[-1].text == (
        "See\n[input_image left out: this model reads text only]"
    )


def test_a_custom_tool_is_a_function_of_its_input() -> None:
    call = {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": '*** "Begin"\n'}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"}
    request = parse(USER, call, result, tools=[PATCH])
    assert request.messages[1:] == (
        Message("assistant", "", (MessageCall("a", "apply_patch", '{"input":"*** \\"Begin\\"\\n"}'),)),
        Message("tool", "ok", call_id="a"),
    )
    function = request.tools[0]["function"]
    assert function["parameters"]["required"] == ["input"]
    assert function["description"] == "Patches.\n\nThe input must follow this lark grammar:\nstart: begin"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"input":"a\\nb"}', "a\nb"), ("*** Begin Patch", "*** Begin Patch"), ('{"patch":"a"}', '{"patch":"a"}')],
)
def test_a_custom_tool_is_called_by_its_input(arguments, given) -> None:
    request, call = parse(tools=[PATCH]), MessageCall("a", "apply_patch", arguments)
    (item,) = orjson.loads(DIALECT.reply(request, make_reply("", call)))["output"]
    assert (item["type"], item["name"], item["input"], item["call_id"]) == (
        "custom_tool_call",
        "apply_patch",
        given,
        "a",
    )
    deltas = [event["delta"] for event in events_of(request, call) if "delta" in event]
    assert "".join(deltas) == given


def test_the_tools_of_a_namespace_bear_its_name() -> None:
    plain = {"type": "namespace", "name": "functions", "tools": [{"type": "function", "name": "exec"}, PATCH]}
    request = parse(tools=[DOCS, plain])
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["mcp__docs__find", "exec", "apply_patch"]
    calls = [MessageCall(str(i), name, "{}") for i, name in enumerate(names)]
    items = orjson.loads(DIALECT.reply(request, make_reply("", *calls)))["output"]
    assert [(item["type"], item.get("namespace"), item["name"]) for item in items] == [
        ("function_call", "mcp__docs__", "find"),
        ("function_call", None, "exec"),
        ("custom_tool_call", None, "apply_patch"),
    ]
    echoed = called(MessageCall("0", "find", "{}"), namespace="mcp__docs__")
    assert parse(USER, echoed, answered("0"), tools=[DOCS]).messages[1].calls == (calls[0],)


def test_tools_that_openais_server_would_run_are_left_out() -> None:
    given = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "function", "name": "ls", "strict": False}]
    empty = {"type": "object", "properties": {}}
    assert parse(tools=[*given, {"type": "namespace", "name": "none"}]).tools == (
        {"type": "function", "function": {"name": "ls", "description": "", "parameters": empty}},
    )


def test_a_call_of_the_local_shell_is_a_call() -> None:
    action = {"type": "exec", "command": ["ls"], "env": None, "timeout_ms": 5}
    item = {"type": "local_shell_call", "call_id": "a", "status": "completed", "action": action}
    result = {"type": "local_shell_call_output", "id": "a", "output": "x"}
    assert parse(USER, item, result).messages[1:] == (
        Message("assistant", "", (MessageCall("a", "local_shell", '{"command":["ls"],"timeout_ms":5}'),)),
        Message("tool", "x", call_id="a"),
    )


def test_limits_streams_and_sampling() -> None:
    request = parse(max_output_tokens=5, stream=True, reasoning={"effort": "low"}, store=False, include=[])
    assert (request.max_tokens, request.stream) == (5, True)
    assert request.sampling == {"reasoning": {"effort": "low"}}


def test_events_are_numbered_and_items_are_sent_in_order() -> None:
    events = events_of(parse(stream=True), VIEW, text="I look.")
    assert [event["sequence_number"] for event in events] == [*range(2, 2 + len(events))]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": None}, "input: no message was given"),
        ({"input": 1}, "input: 1 was given, a list of objects is allowed"),
        ({"input": ["x"]}, "input[0]: 'x' was given, an object is allowed"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type: 'item_reference' was given, 'message', "),
        ({"input": [{"type": ["message"]}]}, "input[0].type: a list of 1 was given"),
        ({"input": [{"type": None}]}, "input[0].type: nothing was given"),
        (
            {"input": [{"role": "tool"}]},
            "input[0].role: 'tool' was given, 'system', 'developer', 'user' or 'assistant'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type: 'input_image'",
        ),
        ({"input": [{"type": "function_call", "name": "x", "arguments": {}}]}, "input[0].arguments: an object was"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name: nothing was given, a string"),
        ({"input": [{"type": "local_shell_call"}]}, "input[0].action: nothing was given, an object is allowed"),
        ({"input": [USER, {"role": "assistant", "content": "I"}]}, "input: the last message is the assistant's"),
        ({"input": [USER, {"type": "function_call", "name": "x"}]}, "input: the last message is the assistant's"),
        ({"instructions": []}, "instructions: a list of 0 was given, a string or null is allowed"),
        (
            {"previous_response_id": "r"},
            "previous_response_id: 'r' was given, nothing (no response is stored: send the",
        ),
        ({"conversation": {"id": "c"}}, "conversation: an object was given"),
        ({"background": True}, "background: true was given, false"),
        ({"top_logprobs": 2}, "top_logprobs: 2 was given"),
        ({"tools": [{"name": "x"}]}, "tools[0].type: nothing was given, a string is allowed"),
        ({"tools": [{"type": "function"}]}, "tools[0].name: nothing was given, a string is allowed"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": [1]}]}, "tools[0].tools[0]: 1 was given, an object"),
        ({"tools": [{"type": "custom", "name": "x", "format": 1}]}, "tools[0].format: 1 was given, an object"),
        (
            {"tools": [DOCS, {"type": "function", "name": "mcp__docs__find"}]},
            "tools: 'mcp__docs__find' was given, each",
        ),
        ({"max_output_tokens": 1.5}, "max_output_tokens: 1.5 was given"),
    ],
)
def test_what_can_not_be_answered_is_refused_by_its_field(fields, message) -> None:
    with pytest.raises(ProxyError) as caught:
        parse(**fields)
    assert caught.value.kind == "invalid_request"
    assert caught.value.message.startswith(message)
