"""Anthropic's messages (`POST /v1/messages`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
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

TOO_LONG = "prompt is too long"  # what clients look for
UNPARSED = "__unparsedToolInput"  # where Claude Code keeps the text of arguments that it could not read
# A line of accounting that Claude Code puts before its system prompt, another one in each session.
_ACCOUNTING = "x-anthropic-billing-header:"
_NUMBERS = ("temperature", "top_p", "top_k")
_OTHERS = ("stop_sequences", "thinking", "tool_choice", "output_config", "output_format")
_THOUGHTS = ("thinking", "redacted_thinking")
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERRORS: Mapping[Kind, str] = {
    "invalid_request": "invalid_request_error",
    "context_length": "invalid_request_error",
    "authentication": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "too_many": "rate_limit_error",
    "engine": "api_error",
}


class AnthropicMessages:
    """The `Dialect` of Anthropic's messages.

    docs/proxy_protocols.md says what is read and what is not. `max_tokens` may be absent, as in a count of tokens.

    A call's `input` has to be an object. If the policy wrote none, the input is {"__unparsedToolInput": {"raw": its
    text, "len": its length in bytes}}, streamed or not. This is the form in which Claude Code itself keeps such a call.
    """

    head = b'{"model":"-","max_tokens":1,"messages":['

    def parse(self, body: bytes) -> Request:
        asked = reading.load(body)
        tools, deferred = _tools(asked)
        messages = [Message("system", text) for text in _system(asked)]
        for at, given in reading.objects(asked, "messages"):
            messages += _messages(given, at, deferred)
        return Request(
            model=reading.name(asked, "model"),
            messages=reading.history(messages),
            tools=reading.distinct(tools),
            max_tokens=reading.tokens(asked, "max_tokens"),
            stream=reading.flag(asked, "stream"),
            sampling=reading.sampling(asked, _NUMBERS, _OTHERS),
        )

    def reply(self, request: Request, reply: Reply) -> bytes:
        content: list[Object] = [_thinking(reply, reply.reasoning)] if reply.reasoning else []
        content += [{"type": "text", "text": reply.text}] if reply.text else []
        content += [_block(call, orjson.Fragment(_input(call))) for call in reply.calls]
        return orjson.dumps(
            {
                **_message_head(reply.id, reply.model),
                "content": content,
                "stop_reason": _STOP_REASONS[reply.finish],
                "usage": _usage(reply),
            }
        )

    def opening(self, request: Request, reply_id: str, created: int) -> bytes:
        """Token counts are not known yet: clients take those that come with the end of the message."""
        usage = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
        message = {**_message_head(reply_id, request.model), "usage": usage}
        return _event("message_start", message=message)

    def keep_alive(self, request: Request, reply_id: str, created: int) -> bytes:
        return _event("ping")

    def events(self, request: Request, reply: Reply) -> Iterator[bytes]:
        index = count()
        if reply.reasoning:
            deltas: list[Object] = [
                {"type": "thinking_delta", "thinking": piece} for piece in sse_pieces(reply.reasoning)
            ]
            deltas.append({"type": "signature_delta", "signature": _signature(reply)})
            yield from _block_events(next(index), {**_thinking(reply, ""), "signature": ""}, deltas)
        if reply.text:
            deltas = [{"type": "text_delta", "text": piece} for piece in sse_pieces(reply.text)]
            yield from _block_events(next(index), {"type": "text", "text": ""}, deltas)
        for call in reply.calls:
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in sse_pieces(_input(call))]
            yield from _block_events(next(index), _block(call, {}), deltas)
        delta = {"stop_reason": _STOP_REASONS[reply.finish], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(reply))
        yield _event("message_stop")

    def failed(self, error: ProxyError, reply_id: str) -> bytes:
        return sse_event(_error(error), "error")

    def error(self, error: ProxyError) -> bytes:
        return orjson.dumps(_error(error))


def _error(error: ProxyError) -> Object:
    message = error.message
    if error.kind == "context_length" and not message.startswith(TOO_LONG):
        message = f"{TOO_LONG}: {message}"
    return {"type": "error", "error": {"type": _ERRORS[error.kind], "message": message}}


def _system(asked: Object) -> list[str]:
    """Return the system prompt, if there is one, without the client's line of accounting."""
    if type(asked.get("system")) is list:
        blocks = [reading.part(block, at) for at, block in reading.objects(asked, "system")]
        kept = [text for text in blocks if text and not text.startswith(_ACCOUNTING)]
        return ["\n".join(kept)] if kept else []
    text = reading.joined(asked, "system", "")
    return [text] if text else []


def _messages(given: Object, where: str, deferred: Mapping[str, str]) -> list[Message]:
    role = given.get("role")
    if role == "user":
        return _user(given, where, deferred)
    if role == "assistant":
        return [_assistant(given, where)]
    if role == "system":
        return [Message("system", reading.joined(given, "content", where))]
    raise reading.wrong(f"{where}.role", role, reading.one_of(("user", "assistant", "system")))


def _user(given: Object, where: str, deferred: Mapping[str, str]) -> list[Message]:
    messages, texts = [], []
    for at, block in reading.parts(given, "content", where):
        if block.get("type") == "tool_result":
            result = _result(block, at, deferred)
            messages.append(Message("tool", result, call_id=reading.text(block, "tool_use_id", at)))
        else:
            texts.append(reading.part(block, at, ("text", "tool_result")))
    said = "\n".join(filter(None, texts))
    if said or not messages:
        messages.append(Message("user", said))
    return messages


def _result(block: Object, where: str, deferred: Mapping[str, str]) -> str:
    texts, found = [], []
    for at, part in reading.parts(block, "content", where):
        tool = part.get("tool_name") if part.get("type") == "tool_reference" else None
        if type(tool) is str and tool in deferred:
            found.append(deferred[tool])
        else:
            texts.append(reading.part(part, at, stand_ins=True))
    if found:
        texts.append("\n".join(("<functions>", *found, "</functions>")))
    return "\n".join(filter(None, texts))


def _assistant(given: Object, where: str) -> Message:
    texts, calls = [], []
    for at, block in reading.parts(given, "content", where):
        kind = block.get("type")
        if kind == "text":
            texts.append(reading.string(block, "text", at))
        elif kind == "tool_use":
            calls.append(_call(block, at))
        elif kind not in _THOUGHTS:
            raise reading.wrong(f"{at}.type", kind, reading.one_of(("text", "tool_use", *_THOUGHTS)))
    return Message("assistant", "".join(texts), tuple(calls))


def _call(block: Object, where: str) -> MessageCall:
    given = reading.object_(block, "input", where)
    kept = given.get(UNPARSED)
    raw = kept.get("raw") if type(kept) is dict else kept
    arguments = raw if type(raw) is str else reading.dump(given, f"{where}.input")
    return MessageCall(reading.text(block, "id", where), reading.string(block, "name", where), arguments)


def _tools(asked: Object) -> tuple[list[Object], dict[str, str]]:
    """Return the tools that are offered from the start, and by name the text that offers those which are not."""
    offered, deferred = [], {}
    for at, given in reading.objects(asked, "tools"):
        kind = reading.text(given, "type", at)
        if kind not in ("", "custom") and given.get("input_schema") is None:
            continue
        tool = _tool(given, at)
        if reading.flag(given, "defer_loading", at):
            function = reading.dump(tool["function"], at)
            deferred[tool["function"]["name"]] = f"<function>{function}</function>"
        else:
            offered.append(tool)
    return offered, deferred


def _tool(tool: Object, where: str) -> Object:
    return reading.function(
        reading.name(tool, "name", where),
        reading.text(tool, "description", where),
        tool.get("input_schema"),
        f"{where}.input_schema",
    )


def _input(call: MessageCall) -> str:
    """Return the JSON text of an object, as the policy wrote it wherever it did write one."""
    try:
        if type(orjson.loads(call.arguments)) is dict:
            return call.arguments
    except orjson.JSONDecodeError:
        pass
    kept = {"raw": call.arguments, "len": len(call.arguments.encode())}
    return orjson.dumps({UNPARSED: kept}).decode()


def _thinking(reply: Reply, text: str) -> Object:
    return {"type": "thinking", "thinking": text, "signature": _signature(reply)}


def _signature(reply: Reply) -> str:
    """Sign thinking, which clients may leave out otherwise. It proves nothing: thinking that comes back is not read."""
    return f"sig_{reply.id}"


def _block(call: MessageCall, given: Any) -> Object:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _block_events(index: int, block: Object, deltas: list[Object]) -> Iterator[bytes]:
    yield _event("content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> bytes:
    return sse_event({"type": kind, **fields}, kind)


def _message_head(reply_id: str, model: str) -> Object:
    return {
        "id": f"msg_{reply_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(reply: Reply) -> Object:
    """Anthropic's input tokens are those that were not cached."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.completion_tokens,
    }
