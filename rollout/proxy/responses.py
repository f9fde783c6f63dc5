"""OpenAI's responses (`POST /v1/responses`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson

from slime_swe.rollout.proxy import reading
from slime_swe.rollout.proxy.chat_completions import error_body
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Reply, Request, sse_event, sse_pieces
from slime_swe.rollout.proxy.reading import Object

_NUMBERS = ("temperature", "top_p")
_OTHERS = ("reasoning", "text", "tool_choice", "parallel_tool_calls")
_TEXTS = ("input_text", "output_text", "text")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_PLAIN_NAMESPACE = "functions"  # Codex's name for tools that are in none
_NEXT = 2  # the sequence number after the opening's


@dataclass(frozen=True)
class Tool:
    """The tool that a name which the policy sees stands for, where that is not a function of the same name."""

    name: str
    namespace: str = ""
    custom: bool = False


class Responses:
    """The `Dialect` of OpenAI's responses.

    docs/proxy_protocols.md says what is read and what is not. Nothing is stored: a request holds its whole history.
    Arguments are given as the policy wrote them. Those of a custom tool that hold no string `input` are its input.
    """

    head = b'{"model":"-","input":['

    def parse(self, body: bytes) -> Request:
        asked = reading.load(body)
        _refuse(asked)
        instructions = reading.text(asked, "instructions")
        opening = [Message("system", instructions)] if instructions else []
        tools = [*_tools(reading.objects(asked, "tools"))]
        return Request(
            model=reading.name(asked, "model"),
            messages=reading.history([*opening, *_input(asked)], "input"),
            tools=reading.distinct([schema for schema, _ in tools]),
            max_tokens=reading.tokens(asked, "max_output_tokens"),
            stream=reading.flag(asked, "stream"),
            sampling=reading.sampling(asked, _NUMBERS, _OTHERS),
            context={"tools": {schema["function"]["name"]: tool for schema, tool in tools if tool}},
        )

    def reply(self, request: Request, reply: Reply) -> bytes:
        return orjson.dumps(_finished(request, reply))

    def opening(self, request: Request, reply_id: str, created: int) -> bytes:
        response = _response(reply_id, request.model, created)
        return _event("response.created", 0, response=response) + self.keep_alive(request, reply_id, created)

    def keep_alive(self, request: Request, reply_id: str, created: int) -> bytes:
        """Return the opening's second event once more."""
        return _event("response.in_progress", 1, response=_response(reply_id, request.model, created))

    def events(self, request: Request, reply: Reply) -> Iterator[bytes]:
        numbers = count(_NEXT)
        finished = _finished(request, reply)
        for index, item in enumerate(finished["output"]):
            for kind, fields in _item_events(item):
                yield _event(kind, next(numbers), output_index=index, **fields)
        yield _event(f"response.{finished['status']}", next(numbers), response=finished)

    def failed(self, error: ProxyError, reply_id: str) -> bytes:
        """The response has its id and its error alone: clients look for nothing else."""
        body = error_body(error)["error"]
        response = _response(reply_id, "", 0, status="failed")
        response["error"] = {"code": body["code"] or body["type"], "message": body["message"]}
        return _event("response.failed", _NEXT, response=response)

    def error(self, error: ProxyError) -> bytes:
        return orjson.dumps(error_body(error))


def _refuse(asked: Object) -> None:
    """Raise `ProxyError` for fields that would be answered wrongly if they were left out of account."""
    whole = "nothing (no response is stored: send the whole conversation as input)"
    for key in ("previous_response_id", "conversation", "prompt"):
        reading.allow(asked, key, (), whole)
    reading.allow(asked, "background", (False,), "false (no response is stored)")
    reading.allow(asked, "top_logprobs", (0,), "0 (the proxy gives out no log-probabilities)")


def _input(asked: Object) -> Iterator[Message]:
    given = asked.get("input")
    if type(given) is str:
        yield Message("user", given)
        return
    for at, item in reading.objects(asked, "input"):
        kind = item.get("type", "message")
        if kind == "message":
            yield _message(item, at)
        elif kind in _CALLS:
            yield Message("assistant", "", (_call(item, at),))
        elif kind in _OUTPUTS:
            result = reading.joined(item, "output", at, _TEXTS, stand_ins=True)
            yield Message("tool", result, call_id=_call_id(item, at))
        elif kind != "reasoning":
            kinds = ("message", "reasoning", *_CALLS, *_OUTPUTS)
            raise reading.wrong(f"{at}.type", kind, reading.one_of(kinds))


def _message(item: Object, where: str) -> Message:
    role = item.get("role")
    if role == "assistant":
        return Message("assistant", reading.joined(item, "content", where, _TEXTS, between=""))
    if role == "user":
        return Message("user", reading.joined(item, "content", where, _TEXTS))
    if role == "system" or role == "developer":
        return Message("system", reading.joined(item, "content", where, _TEXTS))
    raise reading.wrong(f"{where}.role", role, reading.one_of(("system", "developer", "user", "assistant")))


def _call_id(item: Object, where: str) -> str:
    return reading.text(item, "call_id", where) or reading.text(item, "id", where)


def _call(item: Object, where: str) -> MessageCall:
    if item["type"] == "local_shell_call":
        name, action = "local_shell", reading.object_(item, "action", where)
        given = {key: value for key, value in action.items() if key != "type" and value is not None}
        arguments = reading.dump(given, f"{where}.action")
    else:
        name = _flat(reading.text(item, "namespace", where), reading.string(item, "name", where))
        if item["type"] == "function_call":
            arguments = reading.text(item, "arguments", where)
        else:
            arguments = reading.dump({"input": reading.text(item, "input", where)}, where)
    return MessageCall(_call_id(item, where), name, arguments)


def _flat(namespace: str, name: str) -> str:
    """Join a namespace and a name as Codex itself does where a name must be one word."""
    if not namespace or namespace == _PLAIN_NAMESPACE:
        return name
    return f"{namespace.rstrip('_')}__{name.lstrip('_')}"


def _tools(given: Iterable[tuple[str, Object]], namespace: str = "") -> Iterator[tuple[Object, Tool | None]]:
    """Yield the schemas of the tools that a client runs, and what their names stand for."""
    for at, tool in given:
        kind = reading.string(tool, "type", at)
        if kind == "namespace" and not namespace:
            yield from _tools(reading.objects(tool, "tools", at), reading.name(tool, "name", at))
        elif kind == "function" or kind == "custom":
            inside, custom = "" if namespace == _PLAIN_NAMESPACE else namespace, kind == "custom"
            meant = Tool(reading.name(tool, "name", at), inside, custom) if inside or custom else None
            yield _schema(tool, at, namespace), meant


def _schema(tool: Object, where: str, namespace: str) -> Object:
    flat = _flat(namespace, reading.name(tool, "name", where))
    description = reading.text(tool, "description", where)
    if tool["type"] == "function":
        return reading.function(flat, description, tool.get("parameters"), f"{where}.parameters")
    text = {"type": "string", "description": "The tool's whole input, as it is."}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return reading.function(flat, description + _grammar(tool, where), parameters, where)


def _grammar(tool: Object, where: str) -> str:
    """Return what a custom tool demands of its input, for its description."""
    if tool.get("format") is None:
        return ""
    given, at = reading.object_(tool, "format", where), f"{where}.format"
    definition, syntax = reading.text(given, "definition", at), reading.text(given, "syntax", at)
    return f"\n\nThe input must follow this {syntax} grammar:\n{definition}" if definition else ""


def _response(reply_id: str, model: str, created: int, *, status: str = "in_progress") -> Object:
    return {
        "id": f"resp_{reply_id}",
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def _finished(request: Request, reply: Reply) -> Object:
    cut = reply.finish == "length"
    response = _response(reply.id, reply.model, reply.created, status="incomplete" if cut else "completed")
    response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    response["output"] = _items(request, reply)
    response["usage"] = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    return response


def _items(request: Request, reply: Reply) -> list[Object]:
    items = [_call_item(request.context["tools"], call) for call in reply.calls]
    if reply.text or not items:
        message = {
            "type": "message",
            "id": f"msg_{reply.id}",
            "status": "completed",
            "role": "assistant",
            "content": [_content(reply.text)],
        }
        items.insert(0, message)
    if reply.reasoning:
        items.insert(0, _reasoning(reply))
    if reply.finish == "length":
        items[-1]["status"] = "incomplete"
    return items


def _reasoning(reply: Reply) -> Object:
    """Give the reasoning whole, and not as a summary. Nothing is encrypted: reasoning that comes back is not read."""
    content = [{"type": "reasoning_text", "text": reply.reasoning}]
    return {"type": "reasoning", "id": f"rs_{reply.id}", "status": "completed", "summary": [], "content": content}


def _content(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(tools: Mapping[str, Tool], call: MessageCall) -> Object:
    tool = tools.get(call.name, Tool(call.name))
    item = {"call_id": call.id, "name": tool.name, "status": "completed"}
    if tool.namespace:
        item["namespace"] = tool.namespace
    if tool.custom:
        return {"type": "custom_tool_call", "id": f"ctc_{call.id}", **item, "input": _free_form(call.arguments)}
    return {"type": "function_call", "id": f"fc_{call.id}", **item, "arguments": call.arguments}


def _free_form(arguments: str) -> str:
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = given.get("input") if type(given) is dict else None
    return text if type(text) is str else arguments


_STREAMED = {  # the field that an item of each type is streamed by, and its events
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}


def _item_events(item: Object) -> Iterator[tuple[str, Object]]:
    """Yield the events of one item of the output, by type, less what they all have."""
    begun = {**item, "status": "in_progress"}
    if item["type"] == "message":
        yield "response.output_item.added", {"item": {**begun, "content": []}}
        yield from _text_events(item["id"], item["content"][0])
    elif item["type"] == "reasoning":
        yield "response.output_item.added", {"item": {**begun, "content": []}}
        yield from _reasoning_events(item["id"], item["content"][0])
    else:
        key, event = _STREAMED[item["type"]]
        yield "response.output_item.added", {"item": {**begun, key: ""}}
        for piece in sse_pieces(item[key]):
            yield f"{event}.delta", {"item_id": item["id"], "delta": piece}
        yield f"{event}.done", {"item_id": item["id"], "name": item["name"], key: item[key]}
    yield "response.output_item.done", {"item": item}


def _text_events(item_id: str, content: Object) -> Iterator[tuple[str, Object]]:
    at: Mapping[str, Any] = {"item_id": item_id, "content_index": 0}
    yield "response.content_part.added", {**at, "part": _content("")}
    for piece in sse_pieces(content["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": content["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": content}


def _reasoning_events(item_id: str, content: Object) -> Iterator[tuple[str, Object]]:
    at: Mapping[str, Any] = {"item_id": item_id, "content_index": 0}
    yield "response.content_part.added", {**at, "part": {**content, "text": ""}}
    for piece in sse_pieces(content["text"]):
        yield "response.reasoning_text.delta", {**at, "delta": piece}
    yield "response.reasoning_text.done", {**at, "text": content["text"]}
    yield "response.content_part.done", {**at, "part": content}


def _event(kind: str, number: int, **fields: Any) -> bytes:
    return sse_event({"type": kind, "sequence_number": number, **fields}, kind)
