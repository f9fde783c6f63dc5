from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import random
import socket
from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout.client import SESSION, EngineClient
from slime_swe.rollout.replies import EngineAborted, EngineError, parse_reply
from slime_swe.rollout.scripted import serve
from tests.effort import assert_linear
from tests.mutated_json import mutated

TABLE = bytes(range(64))  # four int32 of each of four tokens
EXPERTS = base64.b64encode(TABLE).decode()
PARAMS = {"max_new_tokens": 8, "temperature": 1.0}


def reply(tokens=(5, 6), log_probs=(-0.5, -1.5), kind="stop", **meta) -> dict:
    return {
        "text": "hi",
        "output_ids": list(tokens),
        "meta_info": {
            "finish_reason": {"type": kind},
            "prompt_tokens": 3,
            "completion_tokens": len(tokens),
            "cached_tokens": 2,
            "weight_version": 4,
            "output_token_logprobs": [[p, t, None] for p, t in zip(log_probs, tokens, strict=True)],
            **meta,
        },
    }


def answers(*responses):
    """A handler that gives these responses in turn, and the last one for ever."""
    left = list(responses)

    async def handle(request: web.Request) -> web.StreamResponse:
        handle.asked.append(orjson.loads(await request.read()))
        make = left.pop(0) if len(left) > 1 else left[0]
        return await make(request)

    handle.asked = []
    return handle


def body(content, status=200):
    content = content if isinstance(content, bytes) else orjson.dumps(content)

    async def make(request):
        return web.Response(body=content, status=status, content_type="application/json")

    return make


async def hang_up(request):
    request.transport.close()
    return web.Response()


async def hang(request):
    await asyncio.sleep(10_000)
    return web.Response()


async def half_a_body(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(orjson.dumps(reply())[:40])
    request.transport.close()
    return response


async def endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


def client(url, **options) -> EngineClient:
    return EngineClient(url, **{"timeout": 5.0, "pause": 0.001, **options})


async def test_a_reply_is_read_and_the_request_is_sglang_s():
    handle = answers(body(reply(routed_experts=EXPERTS)))
    async with serve(handle) as url, client(url, experts_per_token=4) as engine:
        generation = await engine.generate([1, 2, 3], PARAMS, experts_from=0)
    assert (generation.tokens, generation.log_probs) == ([5, 6], [-0.5, -1.5])
    assert (generation.finish_reason, generation.version_spans) == ("stop", (("4", 2),))
    assert (generation.prompt_tokens, generation.cached_tokens, generation.routed_experts) == (3, 2, TABLE)
    experts = {"return_routed_experts": True, "routed_experts_start_len": 0}
    assert handle.asked == [{"input_ids": [1, 2, 3], "sampling_params": PARAMS, "return_logprob": True, **experts}]


async def test_all_requests_of_a_session_name_the_gpu_of_an_engine_that_has_its_prefix():
    """What is said of it is one field of SGLang's own; a turn that was aborted goes on there too."""
    aborted = body(reply(tokens=[7], log_probs=[-1.0], kind="abort"))
    handle = answers(aborted, *[body(reply())] * 100)
    async with serve(handle) as url, client(url, ranks=4) as engine:
        for number in range(40):
            for _ in range(2):
                await engine.generate([1], PARAMS, headers={SESSION: f"session {number}"})
        await engine.generate([1], PARAMS)
    *named, without = handle.asked
    ranks = [asked["routed_dp_rank"] for asked in named]
    assert ranks[0] == ranks[1] == ranks[2], "the first turn was aborted once"
    assert ranks[1::2] == ranks[2::2] and set(ranks) == {0, 1, 2, 3}
    assert "routed_dp_rank" not in without


async def test_where_all_gpus_of_an_engine_attend_together_none_is_named():
    handle = answers(body(reply()))
    async with serve(handle) as url, client(url) as engine:
        await engine.generate([1], PARAMS, headers={SESSION: "one"})
    assert "routed_dp_rank" not in handle.asked[0]


@pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed here")
def test_sglang_reads_that_name_and_not_the_one_that_its_router_gives():
    """Read, not imported: it takes seconds."""
    (package,) = find_spec("sglang").submodule_search_locations
    managers = Path(package) / "srt" / "managers"
    request = next(
        node
        for node in ast.walk(ast.parse((managers / "io_struct.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == "GenerateReqInput"
    )
    fields = {node.target.id for node in request.body if isinstance(node, ast.AnnAssign)}
    assert "routed_dp_rank" in fields
    assert "data_parallel_rank" not in fields, "then slime.flags.router-dp-aware is of use"
    controller = (managers / "data_parallel_controller.py").read_text(encoding="utf-8")
    assert "self.workers[req.routed_dp_rank]" in controller


async def test_an_adapter_is_named_in_each_request_of_a_turn():
    handle = answers(body(reply(tokens=[7], log_probs=[-1.0], kind="abort")), body(reply()))
    async with serve(handle) as url, client(url, adapter="mine") as engine:
        assert (await engine.generate([1], PARAMS)).tokens == [7, 5, 6]
    assert [asked["lora_path"] for asked in handle.asked] == ["mine", "mine"]


@pytest.mark.parametrize("trouble", [body(b"", 500), body(b"busy", 503), hang_up, half_a_body])
async def test_passing_trouble_is_tried_again(trouble):
    handle = answers(trouble, trouble, body(reply()))
    async with serve(handle) as url, client(url) as engine:
        assert (await engine.generate([1], PARAMS)).tokens == [5, 6]
    assert len(handle.asked) == 3


async def test_retries_are_counted_by_cause_and_failures_reported():
    """A router names its errors in a header."""

    def named(cause):
        async def make(request):
            return web.Response(status=502, headers={"X-SMG-Error-Code": cause})

        return make

    failed = []

    async def on_failure():
        failed.append(len(handle.asked))

    aborted = body(reply(tokens=[7], log_probs=[-1.0], kind="abort"))
    handle = answers(named("no_workers"), aborted, hang_up, named("not <a> name"), body(reply()))
    async with serve(handle) as url, client(url, on_failure=on_failure) as engine:
        generation = await engine.generate([1], PARAMS)
    assert generation.tokens == [7, 5, 6]
    assert generation.retries == {"no_workers": 1, "aborted": 1, "unreachable": 1, "http_502": 1}
    assert failed == [1, 3, 4]


@pytest.mark.parametrize(
    ("trouble", "message", "asked"),
    [
        (body(b"out of memory", 500), "HTTP 500: out of memory", 3),
        (body(b"too long: 9 > 8", 400), "HTTP 400: too long: 9 > 8", 1),
        (hang_up, "unreachable", 3),
        (half_a_body, "unreachable", 3),
        (body(b"<html>"), "not JSON", 1),
        (body(orjson.dumps(reply())[:-20]), "not JSON", 1),
        (body(b""), "not JSON", 1),
        (endless, "more than 1048576 bytes", 1),
        (body(b"[" + b" " * (10 << 20) + b"]"), "more than 1048576 bytes", 1),
    ],
)
async def test_lasting_trouble_is_an_engine_error(trouble, message, asked):
    handle = answers(trouble)
    async with serve(handle) as url, client(url, attempts=3, max_body=1 << 20) as engine:
        with pytest.raises(EngineError, match=message):
            await engine.generate([1], PARAMS)
    assert len(handle.asked) == asked


async def test_a_server_that_hangs_is_given_up_once():
    handle = answers(hang)
    async with serve(handle) as url, client(url, timeout=0.2) as engine:
        with pytest.raises(EngineError, match=r"did not reply within 0\.2 s"):
            await engine.generate([1], PARAMS)
    assert len(handle.asked) == 1


async def test_a_connection_that_is_never_made_is_tried_again():
    failures = 0

    async def failed() -> None:
        nonlocal failures
        failures += 1

    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as queue:
        for _ in range(4):  # the kernel drops what does not fit its queue of connections
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with client(url, attempts=3, connect_timeout=0.1, on_failure=failed) as engine:
            with pytest.raises(EngineError, match=r"unreachable: no connection in 0\.1 s"):
                await engine.generate([1], PARAMS)
    assert failures == 3


async def test_nobody_listens(unused_tcp_port):
    async with client(f"http://127.0.0.1:{unused_tcp_port}", attempts=2) as engine:
        with pytest.raises(EngineError, match="unreachable"):
            await engine.generate([1], PARAMS)


def aborted(*tokens: int, **meta) -> dict:
    return reply(tokens, [-token / 8 for token in tokens], "abort", **meta)


QUEUED = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}}
STOPS = {**PARAMS, "stop_token_ids": [9], "sampling_seed": 7}


async def test_a_turn_goes_on_from_what_was_said_when_the_engine_aborted_it():
    parts = [QUEUED, aborted(5, 6, weight_version="1"), QUEUED, aborted(weight_version="2"), aborted(7)]
    handle = answers(*map(body, parts), body(b"", 503), body(reply([8, 9], [-1, -1.125], weight_version="3")))
    async with serve(handle) as url, client(url, attempts=4) as engine:
        said = await engine.generate([1, 2, 3], STOPS)
    assert (said.tokens, said.log_probs) == ([5, 6, 7, 8, 9], [-token / 8 for token in (5, 6, 7, 8, 9)])
    assert (said.finish_reason, said.prompt_tokens, said.cached_tokens) == ("stop", 3, 2)
    assert said.version_spans == (("1", 2), ("4", 1), ("3", 2))
    assert [asked["input_ids"] for asked in handle.asked] == [
        *[[1, 2, 3]] * 2,
        *[[1, 2, 3, 5, 6]] * 3,
        *[[1, 2, 3, 5, 6, 7]] * 2,
    ]
    assert [asked["sampling_params"]["max_new_tokens"] for asked in handle.asked] == [8, 8, 6, 6, 6, 5, 5]
    assert {asked["sampling_params"]["sampling_seed"] for asked in handle.asked} == {7}  # draws are by seed and place


@pytest.mark.parametrize(
    ("said", "kept", "finish"),
    [
        ([5, 9], [5, 9], "stop"),
        ([5, 9, 6, 9, 1], [5, 9], "stop"),  # speculative decoding samples several tokens in one step
        ([5] * 8, [5] * 8, "length"),
        ([5] * 11, [5] * 8, "length"),
        ([5] * 7 + [9], [5] * 7 + [9], "stop"),  # SGLang looks at the length first, but nothing was cut
        ([5] * 8 + [9], [5] * 8, "length"),
    ],
)
async def test_a_turn_that_ends_just_as_it_is_aborted_has_ended(said, kept, finish):
    handle = answers(body(aborted(5)), body(aborted(*said[1:])))
    async with serve(handle) as url, client(url) as engine:
        generation = await engine.generate([b"1,", b"2,"], STOPS)
    assert (generation.tokens, generation.finish_reason, len(handle.asked)) == (kept, finish, 2)
    assert generation.log_probs == [-token / 8 for token in kept]


async def test_a_stop_token_that_does_not_stop_the_engine_does_not_end_an_aborted_turn():
    handle = answers(body(aborted(5, 9)), body(reply([6], [-1.0], "length")))
    async with serve(handle) as url, client(url) as engine:
        generation = await engine.generate([1], {**STOPS, "ignore_eos": True})
    assert generation.tokens == [5, 9, 6]


async def test_aborts_before_a_new_token_are_bounded_in_a_row():
    handle = answers(body(QUEUED), body(QUEUED), body(aborted(5)), body(QUEUED))
    async with serve(handle) as url, client(url, attempts=3) as engine:
        with pytest.raises(EngineAborted, match="Abort in waiting queue"):
            await engine.generate([1], PARAMS)
    assert len(handle.asked) == 6


async def test_what_was_said_of_an_aborted_turn_is_checked_as_any_other():
    for wrong, message in ((aborted(5, completion_tokens=2), "completion_tokens"), (aborted(-1), "a log-probability")):
        async with serve(answers(body(wrong))) as url, client(url) as engine:
            with pytest.raises(EngineError, match=message) as caught:
                await engine.generate([1], PARAMS)
        assert not isinstance(caught.value, EngineAborted)


@pytest.mark.parametrize("knows", [True, False], ids=["from there on", "the whole table"])
async def test_the_experts_of_an_aborted_turn_are_joined(knows):
    def part(start: int, end: int, said: dict) -> dict:
        table = bytes(range(4 * start * knows, 4 * end))
        said["meta_info"]["routed_experts"] = base64.b64encode(table).decode()
        return said

    # The second was aborted in the queue, and has no table; the last was aborted too late.
    parts = [part(1, 4, aborted(5, 6)), QUEUED, part(4, 5, aborted(7)), part(5, 9, aborted(8, 9, 1, 1))]
    handle = answers(*map(body, parts))
    async with serve(handle) as url, client(url, experts_per_token=1) as engine:
        said = await engine.generate([1, 2, 3], STOPS, experts_from=1)
    assert said.tokens == [5, 6, 7, 8, 9]
    assert (said.experts_from, said.routed_experts) == (1, bytes(range(4, 28)))
    assert [asked["routed_experts_start_len"] for asked in handle.asked] == [1, 4, 4, 5]


async def test_a_turn_that_ended_as_it_was_aborted_needs_its_experts():
    async with serve(answers(body(aborted(5, 9)))) as url, client(url, experts_per_token=1) as engine:
        with pytest.raises(EngineError, match="which were asked for"):
            await engine.generate([1], STOPS, experts_from=0)


async def test_cancelling_drops_the_connection():
    dropped = asyncio.Event()

    async def handle(request):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            dropped.set()
            raise

    app = web.AppRunner(web.Application(), handler_cancellation=True)
    app.app.router.add_post("/generate", handle)
    await app.setup()
    site = web.TCPSite(app, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with client(f"http://127.0.0.1:{port}") as engine:
        task = asyncio.create_task(engine.generate([1], PARAMS))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(dropped.wait(), 60)
    await app.cleanup()


async def test_a_client_that_was_not_entered_says_so():
    with pytest.raises(RuntimeError, match="async with"):
        await EngineClient("http://x").generate([1], PARAMS)


def changed(**meta) -> dict:
    return reply(**meta)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "lacks a field"),
        ([], "lacks a field"),
        (7, "lacks a field"),
        ({"meta_info": None}, "lacks a field"),
        ({"meta_info": {"finish_reason": None}}, "lacks a field"),
        ({"meta_info": {"finish_reason": "stop"}}, "lacks a field"),
        ({"meta_info": {"finish_reason": {"type": "stop"}}}, "0 tokens where 1 to 8"),
        ({"meta_info": {"finish_reason": {"type": "length"}}}, "0 tokens where 1 to 8"),
        (changed(output_token_logprobs=[[-0.5]]), "lacks a field"),
        (changed(output_token_logprobs=[[-0.5, 5, None, 1]]), "lacks a field"),
        (changed(output_token_logprobs=[[-0.5, 5.5, None], [-0.5, 6, None]]), "lacks a field"),
        (changed(output_token_logprobs={"0": [-0.5, 5, None]}), "lacks a field"),
        (changed(output_token_logprobs=[]), "0 tokens where 1 to 8"),
        (changed(output_token_logprobs=[[-0.5, 5, None]]), "output_ids are not the 1 tokens"),
        (changed(completion_tokens=3), "completion_tokens is 3 for 2 tokens"),
        (changed(completion_tokens="2"), "lacks a field"),
        (changed(completion_tokens=None), "lacks a field"),
        (reply(log_probs=(None, -1.0)), "lacks a field"),
        (reply(log_probs=("-1", -1.0)), "lacks a field"),
        (reply(log_probs=(True, -1.0)), "lacks a field"),
        (reply(log_probs=(-1e308, -1.0)), "a log-probability is not between -1000 and 0"),
        (reply(log_probs=(-1001, -1.0)), "a log-probability"),
        (reply(log_probs=(0.5, -1.0)), "a log-probability"),
        (reply(tokens=(-1, 5)), "a token id"),
        (reply(tokens=(True, 5)), "lacks a field"),
        (reply(tokens=("5", 5)), "lacks a field"),
        (reply(tokens=(1 << 62, 5)), "outside the vocabulary"),
        (reply(tokens=(1 << 31, 5)), "token id 2147483648 is outside the vocabulary"),
        (reply(tokens=range(9), log_probs=[-1.0] * 9), "9 tokens where 1 to 8"),
        (reply(kind="tired"), "lacks a field or has it wrong: Invalid enum value 'tired'"),
        ({**reply(), "output_ids": None}, "lacks a field"),
        ({**reply(), "output_ids": [5, 7]}, "output_ids are not"),
        (changed(weight_version=[1]), "lacks a field"),
        (changed(weight_version=1.5), "lacks a field"),
        (changed(weight_version=True), "lacks a field"),
        (changed(prompt_tokens=-1), "lacks a field"),
        (changed(cached_tokens="2"), "lacks a field"),
        (changed(routed_experts=5), "lacks a field"),
        (changed(routed_experts=["AAAA"]), "lacks a field"),
        (changed(finish_reason={"type": "stop", "message": 5}), "lacks a field"),
    ],
)
def test_a_reply_that_makes_no_sense(answer, message):
    with pytest.raises(EngineError, match=message):
        parse_reply(orjson.dumps(answer), 8)


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"-1e999", b"1e999", b"-0x1", b"9" * 400])
def test_what_is_no_number_of_json_is_refused(number):
    with pytest.raises(EngineError):
        parse_reply(orjson.dumps(reply()).replace(b"-1.5", number), 8)


def test_a_token_beyond_the_vocabulary_is_refused():
    assert parse_reply(orjson.dumps(reply()), 8, vocabulary=7).tokens == [5, 6]
    with pytest.raises(EngineError, match="token id 6 is outside the vocabulary of 6"):
        parse_reply(orjson.dumps(reply()), 8, vocabulary=6)


def test_no_more_tokens_are_cached_than_the_prompt_has():
    assert parse_reply(orjson.dumps(reply(cached_tokens=9)), 8).cached_tokens == 3


@pytest.mark.parametrize(
    ("routed", "message"),
    [
        (None, "which were asked for"),
        ("", "have 0 bytes"),
        ("AAA", "Invalid base64"),
        ("AA AA", "Invalid base64"),
        ("ünï", "Invalid base64"),
        (base64.b64encode(bytes(60)).decode(), "have 60 bytes: 4 int32 of each of 3 tokens are needed, or of all 4"),
        (base64.b64encode(bytes(20)).decode(), "have 20 bytes"),
    ],
)
async def test_routed_experts_of_another_shape_are_refused(routed, message):
    async with serve(answers(body(reply(routed_experts=routed)))) as url, client(url, experts_per_token=4) as engine:
        for ids in ([1, 2, 3], [b"1,2,", b"3,"]):
            with pytest.raises(EngineError, match=message):
                await engine.generate(ids, PARAMS, experts_from=1)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
@pytest.mark.parametrize("knows", [True, False], ids=["from there on", "the whole table"])
async def test_routed_experts_are_those_from_where_they_were_asked_for(start, knows):
    given = base64.b64encode(TABLE[16 * start * knows :]).decode()
    handle = answers(body(reply(routed_experts=given)))
    async with serve(handle) as url, client(url, experts_per_token=4) as engine:
        said = await engine.generate([1, 2, 3], PARAMS, experts_from=start)
    assert (said.routed_experts, said.experts_from) == (TABLE[16 * start :], start)
    assert handle.asked[0]["routed_experts_start_len"] == start


async def test_routed_experts_that_were_not_asked_for_are_not_kept_and_their_size_must_be_known():
    async with serve(answers(body(reply(routed_experts=EXPERTS)))) as url, client(url) as engine:
        assert (await engine.generate([1, 2, 3], PARAMS)).routed_experts is None
        with pytest.raises(ValueError, match="experts_per_token is not given"):
            await engine.generate([1, 2, 3], PARAMS, experts_from=0)


def test_a_long_reply_is_read_in_time_that_grows_with_it():
    bodies = {size: orjson.dumps(reply(range(size), [-1.0] * size)) for size in (8192, 8 * 8192)}
    assert_linear(lambda size: parse_reply(bodies[size], size), 8192)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["meta_info", "output_ids", "text"]), JSON), JSON, JSON)
def test_no_reply_breaks_the_reader(answer, finish, triples):
    answer.setdefault("meta_info", {"finish_reason": finish, "output_token_logprobs": triples})
    with pytest.raises(EngineError):
        parse_reply(_dump(answer), 8)


@pytest.mark.parametrize(
    "count",
    [2_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("mutated replies")])],
)
def test_a_mutated_reply_is_whole_or_an_engine_error(count):
    dice, taken = random.Random(count), 0
    for _ in range(count):
        body = mutated(reply(routed_experts=EXPERTS), dice)
        with contextlib.suppress(EngineError):
            said = parse_reply(body, 8, vocabulary=100)
            taken += 1
            assert 0 < len(said.tokens) == len(said.log_probs) <= 8
            assert all(type(token) is int and 0 <= token < 100 for token in said.tokens)
            assert all(type(value) is float and -1000 <= value < 0.001 for value in said.log_probs)
    assert count // 20 < taken < count


def _dump(answer) -> bytes:
    try:
        return orjson.dumps(answer)
    except TypeError:  # an integer of more than 64 bits, or half a surrogate pair
        return b"{}"
