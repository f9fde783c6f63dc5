"""Routers and engines that drop, rename or shift a field, each caught by the probe of this field."""

from __future__ import annotations

import asyncio
import base64
import random
from array import array
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from slime_swe.embedded.model import ModelConfig
from slime_swe.embedded.server_process import ServerProcess
from slime_swe.launch.doctor import Machine, Status, served
from slime_swe.launch.doctor.served import PROBES, PROBES_OF_EXPERTS, probed
from slime_swe.launch.engines import ENGINES, engine_of
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.rehearse.router import Router, serve
from slime_swe.rollout.client import SESSION
from tests.recipes.changes import variant

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = checkpoint_folder(EMBEDDED_SEED)
VOCABULARY, ROOM = ModelConfig.load(SEED).vocab_size, 300
EXPERTS = 4  # of a token, in all layers together


@pytest.fixture(autouse=True)
def prompts(monkeypatch, request):
    """The same in each run of a test, and others in the next test."""
    source = random.Random(request.node.name)
    monkeypatch.setattr(served.random, "SystemRandom", lambda: source)


class Changing(Router):
    """Changes what is asked and what is answered."""

    def __init__(self, urls, asked=None, answered=None):
        super().__init__(urls)
        self.asked, self.answered = asked, answered

    async def pass_on(self, request):
        if request.path != "/generate":
            return await super().pass_on(request)
        body = orjson.loads(await request.read())
        if self.asked:
            self.asked(body)
        url, headers = next(iter(self.workers.values())), {SESSION: request.headers.get(SESSION, "")}
        async with self._http.post(f"{url}/generate", json=body, headers=headers) as response:
            answer = await response.json()
        if self.answered and response.status == 200:
            self.answered(body, answer)
        return web.json_response(answer, status=response.status)


class Forgetful(Router):
    """Sends each request to the next engine."""

    async def pass_on(self, request):
        headers = {name: value for name, value in request.headers.items() if name != SESSION}
        return await super().pass_on(request.clone(headers=headers))


def route(body, answer):
    """The routed experts of a mixture's tokens, which the dense model of the tests has none of: a function of a token
    and its place."""
    if body.get("return_routed_experts"):
        ids = [*body["input_ids"], *answer["output_ids"]][:-1]
        rows = (
            array("i", [(token + place * layer) % 128 for layer in range(EXPERTS)]) for place, token in enumerate(ids)
        )
        answer["meta_info"]["routed_experts"] = base64.b64encode(b"".join(row.tobytes() for row in rows)).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory):
    log = tmp_path_factory.mktemp("served") / "log"
    async with AsyncExitStack() as stack:
        servers = [ServerProcess(SEED, log, threads=1, seed=0, slots=16, context_length=640) for _ in range(2)]
        yield [await stack.enter_async_context(server) for server in servers]


@asynccontextmanager
async def running(router):
    runner, port = await serve(router)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def failing(url, experts=0):
    results = await probed(url, vocabulary=VOCABULARY, room=ROOM, experts_per_token=experts)
    assert [result.name for result in results] == [*PROBES, *(PROBES_OF_EXPERTS if experts else ())]
    return {result.name: result.message for result in results if not result.ok}


async def found(url, name):
    """The probe of this field finds something wrong."""
    async with aiohttp.ClientSession() as http:
        with pytest.raises(served.Wrong):
            await (PROBES | PROBES_OF_EXPERTS)[name](served.Server(url, http, VOCABULARY, ROOM, EXPERTS))


def urls(engines):
    return [f"http://{engine.host}:{engine.port}" for engine in engines]


def drop(*path):
    """A field of the request, or of what its sampling parameters hold."""

    def change(body):
        for name in path[:-1]:
            body = body.get(name, {})
        body.pop(path[-1], None)

    return change


def of_answer(change):
    return lambda body, answer: change(answer["meta_info"])


def rename(name):
    return of_answer(lambda meta: meta.update({f"{name}s": meta.pop(name)}))


def shift_log_probs(meta):
    triples = meta["output_token_logprobs"]
    values = [value for value, *_ in triples]
    meta["output_token_logprobs"] = [
        [value, *rest] for value, (_, *rest) in zip([*values[1:], values[0]], triples, strict=True)
    ]


def shift_experts(meta, by):
    if table := base64.b64decode(meta.get("routed_experts", "")):
        cut = 4 * EXPERTS * by % len(table)
        meta["routed_experts"] = base64.b64encode(table[cut:] + table[:cut]).decode()


def shift_decoded(body, answer):
    """As SGLang does on a CPU with overlapped scheduling."""
    table = base64.b64decode(answer["meta_info"].get("routed_experts", ""))
    prompt = 4 * EXPERTS * (len(body["input_ids"]) - 1)
    if table:
        late = table[:prompt] + table[prompt : prompt + 4 * EXPERTS] + table[prompt : -4 * EXPERTS]
        answer["meta_info"]["routed_experts"] = base64.b64encode(late).decode()


FAULTS = [
    ("input_ids", {"asked": lambda body: body["input_ids"].pop()}),
    ("output_token_logprobs", {"asked": drop("return_logprob")}),
    ("output_token_logprobs", {"answered": of_answer(shift_log_probs)}),
    ("weight_version", {"answered": rename("weight_version")}),
    ("finish_reason", {"asked": drop("sampling_params", "stop_token_ids")}),
    ("finish_reason", {"answered": of_answer(lambda meta: meta["finish_reason"].pop("matched", None))}),
    ("cached_tokens", {"answered": rename("cached_tokens")}),
    ("rid", {"asked": drop("rid")}),
]
OF_EXPERTS = [
    ("return_routed_experts", {"asked": drop("return_routed_experts")}),
    ("return_routed_experts", {"answered": rename("routed_experts")}),
    ("routed_experts", {"answered": of_answer(lambda meta: shift_experts(meta, 1))}),
    ("routed_experts", {"answered": of_answer(lambda meta: shift_experts(meta, -1))}),
    ("routed_experts", {"answered": shift_decoded}),
]


async def test_a_router_that_passes_everything_on_passes(engines):
    async with running(Router(urls(engines))) as url:
        assert await failing(url) == {}


@pytest.mark.parametrize(("name", "changes"), FAULTS)
async def test_each_fault_is_found_by_its_field(engines, name, changes):
    async with running(Changing(urls(engines)[:1], **changes)) as url:
        await found(url, name)


async def test_a_router_that_forgets_sessions_is_found(engines):
    async with running(Forgetful(urls(engines))) as url:
        assert [*await failing(url)] == ["session"]


@asynccontextmanager
async def mixture(engines, **changes):
    """A router before an engine that has routed experts."""
    async with (
        running(Changing(urls(engines)[:1], answered=route)) as engine,
        running(Changing([engine], **changes)) as url,
    ):
        yield url


async def test_routed_experts_that_are_passed_on_pass(engines):
    async with mixture(engines) as url:
        assert await failing(url, EXPERTS) == {}


@pytest.mark.parametrize(("name", "changes"), OF_EXPERTS)
async def test_each_fault_in_routed_experts_is_found(engines, name, changes):
    async with mixture(engines, **changes) as url:
        await found(url, name)


async def test_a_server_that_is_gone_fails_each_probe():
    async with running(Router(["http://127.0.0.1:9"])) as url:
        assert {*await failing(url)} == {*PROBES}


def findings(**changes):
    return [*served.check_fields(variant("tiny_cpu", **changes), Machine())]


async def test_the_doctor_asks_the_servers_that_a_recipe_names(engines):
    (host, port), (other, another) = ((engine.host, engine.port) for engine in engines)
    ask = partial(asyncio.to_thread, findings)
    (router,) = await ask(serving__router_ip=host, serving__router_port=port)
    assert router.status == Status.OK and "rid" in router.message
    (engine,) = await ask(serving__external_engines=[f"{other}:{another}"])
    assert engine.status == Status.OK
    assert [finding.status for finding in findings()] == [Status.SKIPPED]
    async with running(Changing(urls(engines)[:1], asked=drop("rid"))) as url:
        (wrong,) = await ask(serving__external_engines=[url])
        assert wrong.status == Status.FAILURE and "rid" in wrong.message and "rid" in wrong.fix
    for name in ENGINES:
        assert "fields" in engine_of(variant("tiny_cpu", engine=name)).doctor


async def test_engines_register_and_leave(engines):
    async with running(Router()) as url, aiohttp.ClientSession() as http:
        assert (await http.get(f"{url}/health")).status == 200
        assert (await http.post(f"{url}/generate", json={})).status == 503
        for _ in range(2):
            assert (await http.post(f"{url}/workers", json={"url": urls(engines)[0]})).status == 202
        (worker,) = (await (await http.get(f"{url}/workers")).json())["workers"]
        assert (await http.get(f"{url}/get_model_info")).status == 200
        assert (await http.delete(f"{url}/workers/{worker['id']}")).status == 200
        assert (await http.delete(f"{url}/workers/{worker['id']}")).status == 404
