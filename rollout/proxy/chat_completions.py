"""OpenAI's chat completions (`POST /v1/chat/completions`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from slime_swe.rollout.proxy import reading
from slime_swe.rollout.proxy.conversation import (
    Kind,
    Message,
    MessageCall,
    ProxyError,
    Reply,
    Request,
    sse_event,
    sse_pieces,
)
from slime_swe.rollout.proxy.reading import Object

TOO_LONG = "This model's maximum context length is exceeded"  # what clients look for, beside the code
_NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
_OTHERS = ("stop", "logit_bias", "reasoning_effort", "response_format", "tool_choice", "parallel_tool_calls")
_ERRORS: Mapping[Kind, tuple[str, str | None]] = {
    "invalid_request": ("invalid_request_error", None),
    "context_length": ("invalid_request_error", "context_length_exceeded"),
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "too_many": ("rate_limit_error", "rate_limit_exceeded"),
    "engine": ("server_error", "server_error"),
}


class ChatCompletions:
    """The `Dialect` of OpenAI's chat completions.

    docs/proxy_protocols.md says what is read and what is not. A call's arguments are given as the policy wrote them.
    """

    head = b'{"model":"-","messages":['

    def parse(self, body: bytes) -> Request:
        asked = reading.load(body)
        _refuse(asked)
        stream = reading.flag(asked, "stream")
        options = asked.get("stream_options")
        usage = options is not None and reading.flag(
            reading.object_(asked, "stream_options"), "include_usage", "stream_options"
        )
        return Request(
            model=reading.name(asked, "model"),
            messages=reading.history([_message(given, at) for at, given in reading.objects(asked, "messages")]),
            tools=reading.distinct([_tool(given, at) for at, given in reading.objects(asked, "tools")]),
            max_tokens=reading.tokens(asked, "max_completion_tokens", "max_tokens"),
            stream=stream,
            sampling=reading.sampling(asked, _NUMBERS, _OTHERS),
            context={"include_usage": usage},
        )

    def reply(self, request: Request, reply: Reply) -> bytes:
        message: Object = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [_given(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
        return orjson.dumps(
            {
                "id": f"chatcmpl-{reply.id}",
                "object": "chat.completion",
                "created": reply.created,
                "model": reply.model,
                "choices": [choice],
                "usage": _usage(reply),
            }
        )

    def opening(self, request: Request, reply_id: str, created: int) -> bytes:
        return _chunk(request, reply_id, created, {"role": "assistant", "content": ""})

    def keep_alive(self, request: Request, reply_id: str, created: int) -> bytes:
        return _chunk(request, reply_id, created, {})

    def events(self, request: Request, reply: Reply) -> Iterator[bytes]:
        for delta in _deltas(reply):
            yield _chunk(request, reply.id, reply.created, delta)
        yield _chunk(request, reply.id, reply.created, {}, reply.finish)
        if request.context["include_usage"]:
            yield sse_event({**_head(request, reply.id, reply.created), "choices": [], "usage": _usage(reply)})
        yield b"data: [DONE]\n\n"

    def failed(self, error: ProxyError, reply_id: str) -> bytes:
        return sse_event(error_body(error))

    def error(self, error: ProxyError) -> bytes:
        return orjson.dumps(error_body(error))


def error_body(error: ProxyError) -> Object:
    """Return OpenAI's error, {"error": {"message", "type", "param", "code"}}, which both of its protocols have."""
    kind, code = _ERRORS[error.kind]
    message = f"{TOO_LONG}: {error.message}" if error.kind == "context_length" else error.message
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _refuse(asked: Object) -> None:
    """Raise `ProxyError` for fields that would be answered wrongly if they were left out of account."""
    reading.allow(asked, "n", (1,), "one choice (1)")
    reading.allow(asked, "logprobs", (False,), "false (the proxy gives out no log-probabilities)")
    reading.allow(asked, "top_logprobs", (0,), "0 (the proxy gives out no log-probabilities)")
    reading.allow(asked, "modalities", (["text"],), '["text"]')
    reading.allow(asked, "audio", (), "nothing (this model writes text only)")
    reading.allow(asked, "functions", ([],), 'nothing (offer functions as "tools")')


def _message(given: Object, where: str) -> Message:
    role = given.get("role")
    if role == "assistant":
        return _assistant(given, where)
    if role == "tool":
        result = reading.joined(given, "content", where, stand_ins=True)
        return Message("tool", result, call_id=reading.text(given, "tool_call_id", where))
    if role == "user":
        return Message("user", reading.joined(given, "content", where))
    if role == "system" or role == "developer":
        return Message("system", reading.joined(given, "content", where))
    raise reading.wrong(f"{where}.role", role, reading.one_of(("system", "developer", "user", "assistant", "tool")))


def _assistant(given: Object, where: str) -> Message:
    reading.allow(given, "function_call", (), 'nothing (give calls as "tool_calls")', where)
    text = reading.joined(given, "content", where, between="")
    return Message(
        "assistant", text, tuple(_call(call, at) for at, call in reading.objects(given, "tool_calls", where))
    )


def _function(given: Object, where: str) -> tuple[Object, str]:
    reading.allow(given, "type", ("function",), "only 'function'", where)
    return reading.object_(given, "function", where), f"{where}.function"


def _call(given: Object, where: str) -> MessageCall:
    function, at = _function(given, where)
    arguments = function.get("arguments")
    if type(arguments) is dict:  # some clients keep them parsed
        arguments = reading.dump(arguments, f"{at}.arguments")
    else:
        arguments = reading.text(function, "arguments", at)
    return MessageCall(reading.text(given, "id", where), reading.string(function, "name", at), arguments)


def _tool(given: Object, where: str) -> Object:
    function, at = _function(given, where)
    return reading.function(
        reading.name(function, "name", at),
        reading.text(function, "description", at),
        function.get("parameters"),
        f"{at}.parameters",
    )


def _head(request: Request, reply_id: str, created: int) -> Object:
    return {"id": f"chatcmpl-{reply_id}", "object": "chat.completion.chunk", "created": created, "model": request.model}


def _chunk(request: Request, reply_id: str, created: int, delta: Object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return sse_event({**_head(request, reply_id, created), "choices": [choice]})


def _deltas(reply: Reply) -> Iterator[Object]:
    for piece in sse_pieces(reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in sse_pieces(reply.text):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        opened = {"index": index, **_given(MessageCall(call.id, call.name, ""))}
        yield {"tool_calls": [opened]}
        for piece in sse_pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _given(call: MessageCall) -> Object:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: Reply) -> Mapping[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
