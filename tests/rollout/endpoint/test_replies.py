"""What endpoints answer, and what is made of it."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.endpoint.replies import (
    ContextFull,
    Passing,
    Refused,
    Unfit,
    Usage,
    failure_of,
    parse_chat_reply,
    retry_after,
)
from slime_swe.rollout.replies import EngineError


def reply(message, finish="stop", **more) -> bytes:
    return orjson.dumps({"choices": [{"message": message, "finish_reason": finish}], **more})


def test_a_reply_may_leave_out_what_it_has_not():
    found = parse_chat_reply(reply({"role": "assistant", "content": None}))
    assert (found.text, found.reasoning, found.calls, found.usage) == ("", "", (), None)
    assert (found.tokens, found.completion_tokens, found.finish_reason) == ([], 0, "stop")


def test_a_reply_in_parts_with_parsed_arguments_and_calls_without_ids():
    calls = [{"function": {"name": "run", "arguments": {"a": 1}}}, {"id": "", "function": {"name": None}}]
    content = [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts."}]
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}
    found = parse_chat_reply(reply({"content": content, "tool_calls": calls}, "length", usage=usage))
    assert (found.text, found.finish_reason, found.usage) == ("Two parts.", "length", Usage(5, 7, 0))
    first, second = found.calls
    assert (first.name, first.arguments, second.name, second.arguments) == ("run", '{"a":1}', "unnamed_tool", "")
    assert first.id and second.id and first.id != second.id


def test_reasoning_and_what_was_cached_are_counted():
    usage = {
        "prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }  # fmt: skip
    found = parse_chat_reply(reply({"content": "a", "reasoning": "b"}, usage=usage))
    assert (found.reasoning, found.reasoning_field, found.reasoning_tokens) == ("b", "reasoning", 40)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (100, 80, 50)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", EngineError),
        (b"[]", EngineError),
        (b'{"choices": []}', EngineError),
        (b'{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "x"}}', EngineError),
        (b'{"error": {"message": "upstream failed", "code": 502}}', Passing),
    ],
)
def test_what_is_no_reply_is_infrastructure(body, kind):
    with pytest.raises(kind) as caught:
        parse_chat_reply(body)
    assert isinstance(caught.value, InfrastructureError)


OPENAI = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}
VLLM = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5000.",
        "code": 400,
    }
}
SGLANG = {
    "object": "error",
    "message": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
}
NO_PARSER = {
    "error": {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'}
}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, VLLM, ContextFull),
        (400, SGLANG, ContextFull),
        (413, {"error": {"code": "context_length_exceeded", "message": ""}}, ContextFull),
        (400, NO_PARSER, Unfit),
        (422, {"detail": [{"loc": ["body"]}]}, Unfit),
        (401, {"detail": "Unauthorized"}, Refused),
        (402, {}, Refused),
        (403, {}, Refused),
        (404, {}, Refused),
        (301, {}, Refused),
        (429, OPENAI, Refused),
        (429, {}, Passing),
        (408, {}, Passing),
        (500, {}, Passing),
        (529, {}, Passing),
    ],
)
def test_each_failure_has_its_kind(status, body, kind):
    failure = failure_of(status, {"Location": "https://other/v1"}, orjson.dumps(body), "https://host/v1")
    assert type(failure) is kind
    assert isinstance(failure, UserError) == (kind is Refused)


def test_an_endpoint_s_own_words_are_passed_on():
    assert "status 404: no such model" in str(failure_of(404, {}, b'{"error": {"message": "no such\\nmodel"}}', "u"))
    assert "status 502: <html>bad gateway</html>" in str(failure_of(502, {}, b"<html>bad gateway</html>", "u"))
    assert "leads on to https://other/v1" in str(failure_of(308, {"Location": "https://other/v1"}, b"", "u"))
    assert len(str(failure_of(500, {}, b"x" * 10_000, "u"))) < 500


def test_a_pause_is_given_in_seconds_or_as_a_date():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert retry_after("7", now) == 7
    assert retry_after("0.5", now) == 0.5
    assert retry_after("-3", now) == 0
    assert retry_after("Fri, 02 Jan 2026 03:04:35 GMT", now) == 30
    assert retry_after("Fri, 02 Jan 2026 03:00:00 GMT", now) == 0
    assert retry_after("", now) is retry_after("soon", now) is None
