"""`ProxySession`: budgets, second tries, requests at once, and an engine that fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from aiohttp import web

from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import UNNAMED, EpisodeStatistics, Session, StopReason
from slime_swe.rollout.proxy import sessions
from slime_swe.rollout.proxy.conversation import Message, ProxyError, Request
from slime_swe.rollout.proxy.sessions import MAX_TOO_LONG, Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import serve
from tests.rollout.support import END, PARAMS, call

OPENING = (Message("system", "Be brief."), Message("user", "Fix the bug."))
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "lines": {"type": "integer"}},
            },
        },
    },
)
ASKED = Request("m", OPENING, TOOLS)


@pytest.fixture(scope="module")
def templates(tokenizer) -> Templates:
    return Templates(tokenizer, "hermes")


@pytest.fixture
def opened(templates, scripted):
    """`async with opened(*turns, **changes of the policy) as (session, engine)`."""

    @asynccontextmanager
    async def start(*turns: str, **changes) -> AsyncIterator[tuple[ProxySession, object]]:
        async with scripted(*turns) as engine, EngineClient(engine.url, pause=0.01) as client:
            policy = replace(Policy(client, templates, "hermes", max_context=4096, max_turns=8), **changes)
            yield ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics()), engine

    return start


class Spoken:
    """A dialect whose bodies are requests already."""

    def __init__(self, request: Request) -> None:
        self.parse = lambda body: request


@dataclass
class Dialect:
    """A connection that its client has read, or not."""

    unread: bool

    def is_unread(self, received: int) -> bool:
        return self.unread


async def ask(session: ProxySession, request: Request = ASKED, *, read: bool | None = True):
    """read: None where nothing was written."""
    with session.admit(Spoken(request)) as arrival:
        await session.place(arrival, b"")
        answer = await session.answer(arrival)
        if read is not None:
            answer.begun = True
            answer.sent(Dialect(unread=not read), 0)
        return answer.reply


def sampled(session: ProxySession) -> int:
    return sum(sum(segment.loss_mask) for segment in session.session.segments())


async def test_a_reply_has_the_policy_s_calls_under_ids_of_ours(opened):
    said = "I look.\n" + call("bash", command="ls", lines=3) + "\n" + call("bash", command="pwd") + END
    async with opened(said, "Done." + END) as (session, engine):
        first = await ask(session)
        assert (first.text, first.finish) == ("I look.", "tool_calls")
        assert [(one.name, one.arguments) for one in first.calls] == [
            ("bash", '{"command":"ls","lines":3}'),
            ("bash", '{"command":"pwd"}'),
        ]
        assert len({one.id for one in first.calls}) == 2
        assert first.prompt_tokens == len(engine.requests[0]["input_ids"])
        results = [Message("tool", "out", call_id=one.id) for one in first.calls]
        echo = Message("assistant", first.text, first.calls)
        second = await ask(session, replace(ASKED, messages=(*OPENING, echo, *results)))
        assert (second.text, second.finish, second.calls) == ("Done.", "stop", ())
        assert session.executed == 2
        (segment,) = session.session.segments()
        assert segment.tokens[: len(engine.requests[1]["input_ids"])] == engine.requests[1]["input_ids"]
        assert session.statistics.turns == 2
        assert session.statistics.tool_calls == {"bash": 2}


BROKEN = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls}}\n</tool_call>'


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        (BROKEN, [("bash", '{"command": "ls}')]),
        ('<tool_call>\n{"name": "frob", "arguments": {"x":1}}\n</tool_call>', [("frob", '{"x":1}')]),
        ('<tool_call>\n{"name": 3}\n</tool_call>', [(UNNAMED, '{"name": 3}')]),
        ('<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>', [(UNNAMED, "{}")]),
        ('<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>', [("?", "{}")]),
        ('<tool_call>\n{"name": "bash", "arguments": {"lines": "3"}\n</tool_call>', [("bash", '{"lines":"3"}')]),
        (
            BROKEN + "\n" + call("bash", command="pwd"),
            [("bash", '{"command": "ls}'), ("bash", '{"command":"pwd"}')],
        ),
        (
            call("bash", command="pwd") + "\n" + BROKEN,
            [("bash", '{"command":"pwd"}'), ("bash", '{"command": "ls}')],
        ),
    ],
)
async def test_a_malformed_call_is_a_call_with_what_the_policy_wrote(opened, said, calls):
    async with opened("I look.\n" + said + END, "Done." + END) as (session, engine):
        first = await ask(session)
        assert (first.text, first.finish) == ("I look.", "tool_calls")
        assert [(one.name, one.arguments) for one in first.calls] == calls
        results = [Message("tool", "that was no JSON", call_id=one.id) for one in first.calls]
        echo = Message("assistant", first.text, first.calls)
        await ask(session, replace(ASKED, messages=(*OPENING, echo, *results)))
        (segment,) = session.session.segments()
        second = engine.requests[1]["input_ids"]
        assert segment.tokens[: len(second)] == second
        assert sampled(session) == sum(len(turn.tokens) for turn in engine.sampled)
        assert session.tree.unmatched == session.tree.edited == []


async def test_well_formed_and_malformed_calls_are_counted_apart(opened):
    async with opened(BROKEN + call("bash", command="pwd") + BROKEN + END) as (session, _):
        await ask(session)
        assert session.statistics.malformed_calls == 2
        assert session.statistics.tool_calls == {"bash": 1}


async def test_a_call_that_is_cut_at_the_limit_is_given_as_far_as_it_goes(opened):
    async with opened("I look.\n" + call("bash", command="ls " * 50) + END) as (session, _):
        reply = await ask(session, replace(ASKED, max_tokens=40))
        (cut,) = reply.calls
        assert (reply.finish, cut.name) == ("length", "bash")
        assert cut.arguments.startswith('{"command": "ls ls')
        assert not cut.arguments.endswith("}")


async def test_without_tools_a_call_is_text(opened):
    said = "I look.\n" + call("bash", command="ls")
    async with opened(said + END) as (session, _):
        reply = await ask(session, replace(ASKED, tools=()))
        assert (reply.text, reply.calls, reply.finish) == (said, (), "stop")


async def test_the_run_s_sampling_wins_and_differences_are_counted(opened):
    async with opened("Yes." + END) as (session, engine):
        await ask(session, replace(ASKED, max_tokens=5, sampling={"temperature": 0.2, "top_p": 1.0, "top_k": None}))
        await ask(session, replace(ASKED, max_tokens=10**9))
        params = [request["sampling_params"] for request in engine.requests]
        assert [one["temperature"] for one in params] == [1.0, 1.0]
        assert [one["max_new_tokens"] for one in params] == [5, 200]
        assert session.overridden == {"temperature": 1}


async def test_a_reply_cut_at_its_limit_says_so(opened):
    async with opened("a b c d e f g h i j" + END) as (session, _):
        assert (await ask(session, replace(ASKED, max_tokens=4))).finish == "length"


@pytest.mark.parametrize("read", [None, False])
async def test_an_answer_that_was_not_read_is_given_again_and_one_that_was_read_is_not(opened, read):
    async with opened("Yes." + END) as (session, engine):
        first = await ask(session, read=read)
        again = await ask(session)
        assert first is again
        assert len(engine.requests) == 1
        other = await ask(session)
        assert other.id != first.id
        assert len(session.session.segments()) == 2
        assert sampled(session) == 2 * first.completion_tokens


async def test_a_client_that_never_reads_to_the_end_gets_another_answer_at_last(opened):
    async with opened("Yes." + END) as (session, _):
        ids = [(await ask(session, read=False)).id for _ in range(4)]
        assert ids[0] == ids[1] != ids[2] == ids[3]


async def test_a_turn_of_which_nothing_was_sent_is_not_trained(opened):
    async with opened("Yes." + END) as (session, _):
        first = await ask(session)
        await ask(session, replace(ASKED, messages=(*OPENING, Message("user", "Or else?"))), read=None)
        history = (*OPENING, Message("assistant", first.text), Message("user", "Go on."))
        await ask(session, replace(ASKED, messages=history), read=None)
        await ask(session, replace(ASKED, messages=(*history, Message("assistant", "Yes."), Message("user", "And?"))))
        session.close()
        (segment,) = session.session.segments()
        assert sum(segment.loss_mask) == 3 * first.completion_tokens  # the echoed one was seen


async def test_equal_requests_at_once_share_one_sampling(opened):
    async with opened("Yes." + END) as (session, engine):
        replies = await asyncio.gather(*(ask(session, read=None) for _ in range(3)))
        assert len(engine.requests) == 1
        assert len({reply.id for reply in replies}) == 1
        assert sampled(session) == replies[0].completion_tokens


async def test_different_requests_at_once_are_branches(opened):
    async with opened("Yes." + END) as (session, engine):
        others = [replace(ASKED, messages=(OPENING[0], Message("user", f"Task {n}"))) for n in range(5)]
        replies = await asyncio.gather(*(ask(session, other) for other in others))
        assert len(engine.requests) == len(session.session.segments()) == 5
        assert sampled(session) == sum(reply.completion_tokens for reply in replies)


async def test_a_request_that_nobody_waits_for_is_not_sampled_on(templates):
    gone, hanging = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        hanging.set()
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()
        raise AssertionError("not reached")

    async with serve(hang) as url, EngineClient(url) as client:
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        asking = asyncio.ensure_future(ask(session))
        await hanging.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        assert session.statistics.turns == 0
        assert session.session.segments() == ()
        assert not session._in_flight


async def test_an_engine_that_fails_is_the_client_s_error_and_one_that_returns_is_forgiven(
    templates, tokenizer, scripted
):
    down = True
    async with scripted("Yes." + END) as engine:

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=500) if down else await engine.handle(request)

        async with serve(answer) as url, EngineClient(url, attempts=2, pause=0.01) as client:
            policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8)
            session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
            with pytest.raises(ProxyError, match="HTTP 500") as failed:
                await ask(session)
            assert failed.value.status == 503
            assert session.failure is not None
            down = False
            assert (await ask(session)).text == "Yes."
            assert session.failure is None
            assert len(session.session.segments()) == 1


async def test_what_is_forgotten_is_not_held_by_the_engine_s_failure(templates, scripted):
    """Whose traceback has the frames of the call, and they the record."""

    async def fail(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async with serve(fail) as url, EngineClient(url, attempts=1) as client:
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        with pytest.raises(ProxyError, match="HTTP 500"):
            await ask(session)
        assert "HTTP 500" in session.history()["failure"]
        record = weakref.ref(session.tree)
        session.forget()
        await asyncio.sleep(0)  # the loop has what has just ended
        gc.collect()
        assert record() is None
        assert session.history()["failure"] is None


async def test_a_session_ends_after_its_turns(opened):
    async with opened("Yes." + END, max_turns=2) as (session, engine):
        await ask(session)
        await ask(session)
        for _ in range(2):
            with pytest.raises(ProxyError) as ended:
                await ask(session)
            assert ended.value.status == 404
        assert session.ended is StopReason.MAX_TURNS
        assert len(engine.requests) == 2


async def test_a_prompt_that_does_not_fit_is_refused_a_few_times_and_then_the_session_ends(opened):
    async with opened("Yes." + END, max_context=200) as (session, engine):
        long = replace(ASKED, messages=(*OPENING, Message("user", "word " * 300)))
        for _ in range(MAX_TOO_LONG):
            with pytest.raises(ProxyError, match=r"prompt is too long: \d+ tokens > 184 maximum"):
                await ask(session, long)
        assert session.ended is StopReason.CONTEXT_FULL
        assert engine.requests == []


async def test_a_closed_session_answers_no_more(opened):
    async with opened("Yes." + END) as (session, _):
        session.close()
        with pytest.raises(ProxyError, match="ended"):
            await ask(session)


async def test_a_forgotten_session_starts_anew(opened):
    async with opened("Yes." + END) as (session, _):
        reply = await ask(session)
        session.forget()
        assert session.session.segments() == ()
        history = (*OPENING, Message("assistant", reply.text), Message("user", "Go on."))
        await ask(session, replace(ASKED, messages=history))
        assert len(session.session.segments()) == 1
        assert len(session.tree.unmatched) == 1


async def test_results_in_a_refused_request_are_counted_as_those_of_executed_calls(opened):
    async with opened(call("bash", command="ls") * 2 + BROKEN + END, max_turns=1) as (session, _):
        reply = await ask(session)
        echo = Message("assistant", reply.text, reply.calls)
        results = [Message("tool", "out", call_id=one.id) for one in (*reply.calls, replace(reply.calls[0], id="x"))]
        for _ in range(2):
            with pytest.raises(ProxyError, match=r"ended|has had its 1 model calls"):
                await ask(session, replace(ASKED, messages=(*OPENING, echo, *results)))
        assert session.executed == 2  # not the malformed one


async def test_abandoned_requests_are_counted_and_bounded(templates, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_ABANDONED", 3)
    hanging = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        hanging.set()
        await asyncio.sleep(60)
        raise AssertionError("not reached")

    async with serve(hang) as url, EngineClient(url) as client:
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        for number in range(3):
            asking = asyncio.ensure_future(
                ask(session, replace(ASKED, messages=(*OPENING, Message("user", f"{number}"))))
            )
            await hanging.wait()
            hanging.clear()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        with pytest.raises(ProxyError, match="this session has ended: gave_up"):
            await ask(session)
        assert session.ended is StopReason.GAVE_UP


async def test_requests_at_once_and_their_bytes_are_bounded(opened, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "MOST_BYTES_HELD", 100)
    async with opened("Yes." + END) as (session, _):
        dialect = Spoken(ASKED)
        with session.admit(dialect) as one, session.admit(dialect) as two:
            with pytest.raises(ProxyError, match="2 requests under way") as refused, session.admit(dialect):
                raise AssertionError("not reached")
            assert refused.value.status == 429
            session.hold(one, 60)
            with pytest.raises(ProxyError, match="may have 100 bytes") as refused:
                session.hold(two, 60)
            assert refused.value.status == 429
        with session.admit(dialect) as three:
            session.hold(three, 100)  # what was held is free again


async def test_counts_of_tokens_are_bounded(opened, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_COUNTS", 2)
    async with opened("Yes." + END) as (session, _):
        dialect = Spoken(ASKED)
        for _ in range(2):
            with session.admit(dialect, count=True) as arrival:
                counted = await session.count(arrival, b"")
        with pytest.raises(ProxyError, match="has had its 2 counts"), session.admit(dialect, count=True):
            raise AssertionError("not reached")
        assert (await ask(session)).prompt_tokens == counted  # and the session goes on


async def test_counting_what_does_not_fit_ends_no_session(opened):
    async with opened("Yes." + END) as (session, _):
        dialect = Spoken(replace(ASKED, messages=(Message("user", "word " * 30_000),)))
        for _ in range(MAX_TOO_LONG + 1):
            with pytest.raises(ProxyError, match="at least"), session.admit(dialect, count=True) as arrival:
                await session.count(arrival, b"")
        assert not session.full
        assert (await ask(session)).text == "Yes."


async def test_a_large_request_is_placed_in_a_thread_and_as_any_other(opened, monkeypatch):
    long = replace(ASKED, messages=(*OPENING, Message("user", "word " * 200)))
    async with opened("Yes." + END) as (session, engine):
        await ask(session, long)
        session.forget()
        monkeypatch.setattr(sessions, "INLINE_BYTES", 100)
        await ask(session, long)
        assert engine.requests[0]["input_ids"] == engine.requests[1]["input_ids"]
        asking = asyncio.ensure_future(ask(session, replace(long, messages=(*OPENING, Message("user", "w " * 500)))))
        while not session._heavy.locked():
            await asyncio.sleep(0)
        asking.cancel()
        await ask(session, long)  # waits for the thread of the one that has gone
        assert asking.cancelled()


@pytest.mark.parametrize("text", ["word " * 30_000, "x" * 1_100_000], ids=["beyond the context", "beyond any"])
async def test_a_text_that_can_not_fit_is_refused_unread(opened, text, monkeypatch):
    async with opened("Yes." + END) as (session, _):
        monkeypatch.setattr(session.tree, "place", None)
        with pytest.raises(ProxyError, match=r"at least 9\d+ tokens > 4080 maximum|new characters"):
            await ask(session, replace(ASKED, messages=(Message("user", text),)))


@asynccontextmanager
async def cleared_in_mid_turn(templates, engine, **options):
    """A session whose record is cleared while its second turn is sampled, with the two replies and the history."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(engine.sampled) == 1:
            asked.set()
            await go_on.wait()
        return await engine.handle(request)

    routing = options.get("routing_replay", False)
    async with serve(answer) as url, EngineClient(url, experts_per_token=int(routing)) as client:
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8, **options)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        first = await ask(session)
        history = (*OPENING, Message("assistant", first.text), Message("user", "Go on."))
        asking = asyncio.ensure_future(ask(session, replace(ASKED, messages=history)))
        await asked.wait()
        session.forget()
        go_on.set()
        yield session, first, await asking, history


async def test_a_turn_that_is_sampled_while_the_record_is_cleared_is_in_the_next_one_alone(templates, scripted):
    async with scripted("Yes." + END) as engine, cleared_in_mid_turn(templates, engine) as (session, first, *_):
        assert sampled(session) == first.completion_tokens


async def test_with_routing_replay_such_a_turn_is_not_trained_since_the_experts_before_it_are_gone(templates, scripted):
    async with scripted("Yes." + END) as engine:
        engine.experts = lambda start, end: bytes(4 * (end - start))
        cleared = cleared_in_mid_turn(templates, engine, routing_replay=True)
        async with cleared as (session, _, second, history):
            assert sampled(session) == 0
            third = (*history, Message("assistant", second.text), Message("user", "And on."))
            await ask(session, replace(ASKED, messages=third))
            (segment,) = session.session.segments()
            assert sum(map(len, segment.routed_experts)) == 4 * (len(segment.tokens) - 1)
            assert session.history()["segments"][0]["routed_experts"]
