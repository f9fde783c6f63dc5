"""The official clients take everything that the dialects send, and what they echo of a reply is that reply again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session
from slime_swe.rollout.proxy.anthropic import UNPARSED, AnthropicMessages
from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Reply
from slime_swe.rollout.proxy.responses import Responses
from slime_swe.rollout.proxy.server import open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from tests.rollout.proxy.dialects import REPLIES, Stage, make_reply, staged
from tests.rollout.support import END, PARAMS

openai = pytest.importorskip("openai")  # of the `dev` extra
anthropic = pytest.importorskip("anthropic")

ASKED = {"role": "user", "content": "Fix it."}
TOOLS = [{"name": "view", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]
CUSTOM = {"type": "custom", "name": "patch"}


class Chat:
    """The conversation that a client of chat completions holds; `say` asks for a reply and keeps it."""

    dialect = ChatCompletions()
    error = openai.APIStatusError

    def __init__(self, stage: Stage) -> None:
        http = openai.DefaultAsyncHttpxClient(verify=False)  # certificates take 0.1 s to load
        self.client = openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0, http_client=http)
        self.messages: list[Any] = [ASKED]

    async def ask(self, stream: bool) -> Any:
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        asked = {"model": "policy", "messages": self.messages, "tools": tools}
        if not stream:
            return await self.client.chat.completions.create(**asked)
        async with self.client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            async for _ in events:
                pass
            return events.current_completion_snapshot  # the final one is refused where the reply was cut

    async def say(self, stream: bool) -> Any:
        completion = await self.ask(stream)
        self.messages.append(completion.choices[0].message.model_dump(exclude_none=True))
        calls = completion.choices[0].message.tool_calls or []
        self.messages += [{"role": "tool", "tool_call_id": call.id, "content": f"of {call.id}"} for call in calls]
        self.messages.append({"role": "user", "content": "Go on."})
        return completion


class Claude:
    """The same of Anthropic's messages."""

    dialect = AnthropicMessages()
    error = anthropic.APIStatusError

    def __init__(self, stage: Stage) -> None:
        http = anthropic.DefaultAsyncHttpxClient(verify=False)
        self.client = anthropic.AsyncAnthropic(base_url=stage.url, api_key=stage.key, max_retries=0, http_client=http)
        self.messages: list[Any] = [ASKED]

    async def ask(self, stream: bool) -> Any:
        tools = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in TOOLS]
        asked = {"model": "policy", "messages": self.messages, "tools": tools, "max_tokens": 100}
        if not stream:
            return await self.client.messages.create(**asked)
        async with self.client.messages.stream(**asked) as events:
            async for _ in events:
                pass
            return await events.get_final_message()

    async def say(self, stream: bool) -> Any:
        message = await self.ask(stream)
        blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in message.content]
        self.messages.append({"role": "assistant", "content": blocks})
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in ids]
        self.messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
        return message


class Codex:
    """The same of responses."""

    dialect = Responses()
    error = openai.APIStatusError

    def __init__(self, stage: Stage) -> None:
        http = openai.DefaultAsyncHttpxClient(verify=False)  # certificates take 0.1 s to load
        self.client = openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0, http_client=http)
        self.messages: list[Any] = [ASKED]

    async def ask(self, stream: bool) -> Any:
        tools = [*({"type": "function", "strict": False, **tool} for tool in TOOLS), CUSTOM]
        asked = {"model": "policy", "input": self.messages, "tools": tools}
        if not stream:
            return await self.client.responses.create(**asked)
        last = None
        async with self.client.responses.stream(**asked) as events:
            async for event in events:
                last = event
        return last.response

    async def say(self, stream: bool) -> Any:
        response = await self.ask(stream)
        items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        self.messages += items
        for item in items:
            if item["type"] != "message":
                kind, id = f"{item['type']}_output", item["call_id"]
                self.messages.append({"type": kind, "call_id": id, "output": f"of {id}"})
        self.messages.append({"role": "user", "content": "Go on."})
        return response


CLIENTS = [Chat, Claude, Codex]
every_client = pytest.mark.parametrize("kind", CLIENTS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def talking(kind: Any, reply: Reply | ProxyError) -> AsyncIterator[tuple[Stage, Any]]:
    async with staged(kind.dialect) as stage:
        stage.answer = reply
        client = kind(stage)
        async with client.client:
            yield stage, client


def meaning(call: MessageCall) -> tuple[str, str, Any]:
    """A call as Anthropic's protocol keeps it: the arguments' values, or their text where they are no object."""
    try:
        values = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        values = None
    return call.id, call.name, values if isinstance(values, dict) else call.arguments


def assert_echoed(said: Message, reply: Reply, *, verbatim: bool) -> None:
    assert (said.role, said.text) == ("assistant", reply.text)
    if verbatim:
        assert said.calls == reply.calls
    else:
        assert [*map(meaning, said.calls)] == [*map(meaning, reply.calls)]


async def assert_round_trip(kind: Any, stage: Stage, client: Any, stream: bool) -> None:
    reply = stage.answer
    await client.say(stream)
    await client.say(stream)
    opening, *rest = stage.requests[-1].messages
    assert opening == Message("user", "Fix it.")
    turn = [*takewhile(lambda message: message.role == "assistant", rest)]
    after = rest[len(turn) :]
    said = Message("assistant", "".join(one.text for one in turn), tuple(call for one in turn for call in one.calls))
    assert_echoed(said, reply, verbatim=kind is not Claude)
    results = [Message("tool", f"of {call.id}", call_id=call.id) for call in reply.calls]
    assert after == [*results, Message("user", "Go on.")]


@every_client
@streamed_or_not
@pytest.mark.parametrize("shape", REPLIES)
async def test_a_client_reads_a_reply_and_echoes_it(kind, stream, shape) -> None:
    async with talking(kind, REPLIES[shape]) as (stage, client):
        await assert_round_trip(kind, stage, client, stream)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
well_formed = st.dictionaries(st.text(), values, max_size=4).map(lambda given: orjson.dumps(given).decode())
calls = st.lists(st.tuples(st.sampled_from(["view", "run"]), well_formed | st.text(max_size=20)), max_size=3)


@pytest.fixture(params=CLIENTS)
async def conversation(request) -> AsyncIterator[tuple[Any, Stage, Any]]:
    async with talking(request.param, make_reply()) as (stage, client):
        yield request.param, stage, client


@streamed_or_not
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example starts anew
@given(text=st.text(), said=calls)
async def test_any_reply_is_echoed_as_it_was_said(conversation, stream, text, said) -> None:
    kind, stage, client = conversation
    stage.answer = make_reply(text, *(MessageCall(f"call_{i}", *call) for i, call in enumerate(said)))
    client.messages = [ASKED]
    await assert_round_trip(kind, stage, client, stream)


@streamed_or_not
async def test_chat_completions_tell_how_a_reply_ended_and_what_it_took(stream) -> None:
    for shape, finish in (("text", "stop"), ("parallel calls", "tool_calls"), ("cut", "length")):
        async with talking(Chat, REPLIES[shape]) as (_, client):
            completion = await client.ask(stream)
        assert completion.choices[0].finish_reason == finish
        usage = completion.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1000, 20, 1020)
        assert usage.prompt_tokens_details.cached_tokens == 600


@streamed_or_not
async def test_anthropic_messages_tell_how_a_reply_ended_and_what_it_took(stream) -> None:
    for shape, reason in (("text", "end_turn"), ("parallel calls", "tool_use"), ("cut", "max_tokens")):
        async with talking(Claude, REPLIES[shape]) as (_, client):
            message = await client.ask(stream)
        assert message.stop_reason == reason
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (400, 600, 20)


@streamed_or_not
async def test_responses_tell_how_a_reply_ended_and_what_it_took(stream) -> None:
    for shape, status, cause in (("parallel calls", "completed", None), ("cut", "incomplete", "max_output_tokens")):
        async with talking(Codex, REPLIES[shape]) as (_, client):
            response = await client.ask(stream)
        assert response.status == status
        assert (response.incomplete_details and response.incomplete_details.reason) == cause
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1000, 20, 1020)
        assert usage.input_tokens_details.cached_tokens == 600


@streamed_or_not
async def test_a_malformed_call_reaches_anthropics_client_as_an_object(stream) -> None:
    async with talking(Claude, REPLIES["malformed arguments"]) as (_, client):
        message = await client.ask(stream)
    assert message.content[0].input == {UNPARSED: {"raw": '{"path": "a', "len": 11}}


BAD = '<tool_call>\n{"name": "view", "arguments": {"path": "a}}\n</tool_call>'
GOOD = '<tool_call>\n{"name": "view", "arguments": {"path": "b"}}\n</tool_call>'
MALFORMED = {  # what the policy says, and the calls that its client has to get
    "broken arguments": (f"I look.\n{BAD}", [("view", '{"path": "a}')]),
    "arguments of another type": (BAD.replace('{"path": "a}', '"path a"'), [("view", '"path a"')]),
    "an unknown name": (GOOD.replace("view", "frob"), [("frob", '{"path":"b"}')]),
    "no name": ('<tool_call>\n{"tool":"view"}\n</tool_call>', [("unnamed_tool", '{"tool":"view"}')]),
    "a brace too few": (GOOD.replace("}}", "}"), [("view", '{"path":"b"}')]),
    "one of two": (f"{BAD}\n{GOOD}", [("view", '{"path": "a}'), ("view", '{"path":"b"}')]),
    "the other of two": (f"{GOOD}\n{BAD}", [("view", '{"path":"b"}'), ("view", '{"path": "a}')]),
    "cut at its limit": ("I look.\n" + GOOD.replace("b", "b" * 999), [("view", '{"path": "' + "b" * 9)]),
}


@pytest.fixture(scope="module")
def templates(tokenizer) -> Templates:
    return Templates(tokenizer, "hermes")


def calls_seen(kind: Any, reply: Any) -> list[tuple[str, str]]:
    """Name and arguments of each call, as the client has them."""
    if kind is Chat:
        given = reply.choices[0].message.tool_calls
        return [(call.function.name, call.function.arguments) for call in given]
    if kind is Codex:
        return [(item.name, item.arguments) for item in reply.output if item.type == "function_call"]
    blocks = [block for block in reply.content if block.type == "tool_use"]
    kept = [block.input.get(UNPARSED) for block in blocks]
    return [
        (block.name, raw["raw"] if raw else orjson.dumps(block.input).decode())
        for block, raw in zip(blocks, kept, strict=True)
    ]


def ending(kind: Any, reply: Any) -> str:
    if kind is Chat:
        return str(reply.choices[0].finish_reason)
    return str(reply.stop_reason if kind is Claude else reply.status)


ENDINGS = {Chat: ("tool_calls", "length"), Claude: ("tool_use", "max_tokens"), Codex: ("completed", "incomplete")}


@every_client
@streamed_or_not
@pytest.mark.parametrize("shape", MALFORMED)
async def test_a_malformed_call_reaches_the_client_as_a_call_and_its_echo_is_the_turn(
    kind, stream, shape, templates, scripted
) -> None:
    said, calls = MALFORMED[shape]
    async with scripted(said + END, "Done." + END) as engine, EngineClient(engine.url) as asked, open_proxy() as proxy:
        policy = Policy(asked, templates, "hermes", max_context=4096, max_turns=9)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        async with proxy.serve(session) as path:
            client = kind(Stage(kind.dialect, f"{proxy.url}{path}", session.key))
            async with client.client:
                reply = await client.say(stream)
                await client.say(stream)
        cut = shape == "cut at its limit"
        seen = calls_seen(kind, reply)
        assert [(name, arguments[: len(calls[0][1])] if cut else arguments) for name, arguments in seen] == calls
        assert ending(kind, reply) == ENDINGS[kind][cut]
        (segment,) = session.session.segments()  # no fork
        shown = engine.requests[1]["input_ids"]
        assert segment.tokens[: len(shown)] == shown
        assert sum(segment.loss_mask) == sum(len(turn.tokens) for turn in engine.sampled)
        assert session.tree.unmatched == session.tree.edited == []


@streamed_or_not
async def test_a_custom_tool_is_called_by_its_input(stream) -> None:
    reply = make_reply("", MessageCall("call_1", "patch", '{"input":"*** Begin\\n🙂"}'))
    async with talking(Codex, reply) as (stage, client):
        response = await client.say(stream)
        (item,) = response.output
        assert (item.type, item.name, item.input) == ("custom_tool_call", "patch", "*** Begin\n🙂")
        await client.say(stream)
        said, result = stage.requests[-1].messages[1:3]
        assert said.calls == reply.calls
        assert result == Message("tool", "of call_1", call_id="call_1")


@every_client
@streamed_or_not
@pytest.mark.parametrize(
    ("problem", "status"),
    [
        ("invalid_request", 400),
        ("authentication", 401),
        ("not_found", 404),
        ("too_large", 413),
        ("too_many", 429),
        ("engine", 503),
    ],
)
async def test_an_error_before_a_reply_is_the_clients_own(kind, stream, problem, status) -> None:
    async with talking(kind, ProxyError(problem, "what is wrong")) as (_, client):
        with pytest.raises(kind.error, match="what is wrong") as caught:
            await client.ask(stream)
    assert caught.value.status_code == status


@every_client
async def test_a_context_that_is_full_is_sent_as_clients_know_it(kind) -> None:
    async with talking(kind, ProxyError("context_length", "9000 tokens, 8192 fit")) as (_, client):
        with pytest.raises(kind.error) as caught:
            await client.ask(stream=False)
    body = caught.value.body
    if kind is Claude:
        assert body["error"]["message"] == "prompt is too long: 9000 tokens, 8192 fit"
    else:
        assert body["code"] == "context_length_exceeded"
        assert body["message"].startswith("This model's maximum context length is")


async def test_an_error_within_a_stream_of_chat_completions() -> None:
    async with talking(Chat, ProxyError("engine", "the engine is gone")) as (stage, client):
        stage.late = True
        with pytest.raises(openai.APIError, match="the engine is gone"):
            await client.ask(stream=True)


async def test_an_error_within_a_stream_of_anthropic_messages() -> None:
    async with talking(Claude, ProxyError("engine", "the engine is gone")) as (stage, client):
        stage.late = True
        with pytest.raises(anthropic.APIStatusError, match="the engine is gone"):
            await client.ask(stream=True)


async def test_an_error_within_a_stream_of_responses() -> None:
    async with talking(Codex, ProxyError("engine", "the engine is gone")) as (stage, client):
        stage.late = True
        response = await client.ask(stream=True)
    assert response.status == "failed"
    assert (response.error.code, response.error.message) == ("server_error", "the engine is gone")
