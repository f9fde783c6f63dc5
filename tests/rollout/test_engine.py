"""`Workers` and `abort_all` on engines of which some are gone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from slime_swe.errors import InfrastructureError
from slime_swe.launch.slime.render import to_args
from slime_swe.rollout.engine import ADAPTER, Workers, abort_all, engine_client
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.settings import RolloutSettings
from tests.recipes.changes import variant


class Router:
    """As SGLang's answers about its workers. It counts what it is asked, and is an engine too."""

    def __init__(self, workers: dict[str, str]) -> None:
        self.workers, self.listed, self.aborted = workers, 0, 0

    async def list(self, request: web.Request) -> web.Response:
        self.listed += 1
        return web.json_response({"workers": [{"id": name, "url": url} for name, url in self.workers.items()]})

    async def delete(self, request: web.Request) -> web.Response:
        del self.workers[request.match_info["name"]]
        return web.json_response({"status": "accepted"}, status=202)

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted += 1
        return web.json_response({})


@asynccontextmanager
async def served(workers: dict[str, str], *, is_router: bool = True):
    router, app = Router(workers), web.Application()
    if is_router:
        app.router.add_get("/workers", router.list)
        app.router.add_delete("/workers/{name}", router.delete)
    app.router.add_post("/abort_request", router.abort)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield router, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def gone(unused_tcp_port):
    return f"http://127.0.0.1:{unused_tcp_port}"


async def test_a_router_forgets_the_workers_that_take_no_connections(gone):
    async with served({}) as (_, alive), served({"a": gone, "b": alive}) as (router, url):
        workers = Workers(url)
        assert await asyncio.gather(*(workers.remove_dead() for _ in range(50))) == [[gone]] * 50
        assert (router.workers, router.listed) == ({"b": alive}, 1)
        assert await workers.remove_dead() == []
        assert router.listed == 2


async def test_a_router_that_tells_the_gpus_of_an_engine_apart_has_its_engines_asked(gone):
    async with served({}, is_router=False) as (engine, alive), served({}) as (router, url):
        router.workers |= {"a": f"{alive}@0", "b": f"{alive}@13", "c": f"{gone}@0"}
        await abort_all(url)
        assert engine.aborted == 2
        assert await Workers(url).remove_dead() == [gone]
        assert set(router.workers) == {"a", "b"}


async def test_where_no_worker_takes_connections_all_stay(gone):
    """It may be this machine's network that is broken."""
    async with served({"a": gone, "b": gone}) as (router, url):
        assert await Workers(url).remove_dead() == []
        assert len(router.workers) == 2


async def test_without_a_router_nothing_is_removed(gone):
    async with served({}, is_router=False) as (_, url):
        assert await Workers(url).remove_dead() == []
    assert await Workers(gone).remove_dead() == []


async def test_cancelling_one_that_waits_leaves_it_to_the_others(gone):
    async with served({}) as (_, alive), served({"a": gone, "b": alive}) as (_, url):
        workers = Workers(url)
        one, other = (asyncio.ensure_future(workers.remove_dead()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert await other == [gone]


async def test_abort_passes_over_an_engine_that_is_gone(gone):
    async with served({}) as (engine, alive), served({"a": gone, "b": alive}) as (_, url):
        await abort_all(url)
        await abort_all(alive)
        assert engine.aborted == 1, "its list of workers is empty"
    async with served({}, is_router=False) as (engine, url):
        await abort_all(url)
        assert engine.aborted == 1
    with pytest.raises(InfrastructureError, match="can't be asked to pause"):
        await abort_all(gone)


@pytest.mark.parametrize(("rank", "adapter"), [(0, ""), (8, ADAPTER)])
async def test_with_lora_the_policy_is_an_adapter_of_the_engine(tmp_path, rank, adapter):
    settings = RolloutSettings.from_args(
        to_args(variant("tiny_cpu", serving__router_ip="127.0.0.1", serving__router_port=1), tmp_path)
    )
    client = await engine_client(replace(settings, lora_rank=rank))
    assert client.adapter == adapter
    await close_loop_scope()
