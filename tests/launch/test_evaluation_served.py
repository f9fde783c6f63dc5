"""Each worker of a router is asked which model it serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.evaluation.target import models_at, require_serves


async def worker(path: str, said: object, status: int = 200) -> TestServer:
    """A server that answers with `said` at one path, and knows no other."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(said, status=status)

    app.router.add_get(path, answer)
    server = TestServer(app)
    await server.start_server()
    return server


def url_of(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")


async def router_of(*workers: TestServer) -> TestServer:
    return await worker("/workers", {"workers": [{"id": str(w.port), "url": url_of(w)} for w in workers]})


@pytest.fixture
async def served(tmp_path):
    """A folder, and servers that say they have it: by the newer path, by the older one, and not at all."""
    servers = [
        await worker("/model_info", {"model_path": str(tmp_path)}),
        await worker("/get_model_info", {"model_path": str(tmp_path)}),
        await worker("/model_info", ["nothing"]),
    ]
    yield tmp_path, servers
    for server in servers:
        await server.close()


async def test_every_worker_must_have_the_model(served):
    folder, servers = served
    router, other = await router_of(*servers), await worker("/model_info", {"model_path": "/elsewhere"})
    found = await models_at(url_of(router))
    assert [*found.values()] == [str(folder), str(folder), ""]
    await require_serves(url_of(router), folder, None)
    mixed = await router_of(*servers, other)
    with pytest.raises(UserError, match=f":{other.port} serves /elsewhere, and .* or give --model /elsewhere"):
        await require_serves(url_of(mixed), folder, None)
    await require_serves(url_of(other), folder, "/elsewhere")
    with pytest.raises(UserError, match=f"serves {folder}"):
        await require_serves(url_of(servers[0]), folder, "/elsewhere")
    for server in (router, mixed, other):
        await server.close()


async def test_a_router_without_workers_and_an_address_without_a_server_are_said():
    router = await router_of()
    url = url_of(router)
    with pytest.raises(InfrastructureError, match="has no worker"):
        await require_serves(url, Path(), None)
    await router.close()
    with pytest.raises(InfrastructureError, match="no SGLang can be asked at"):
        await models_at(url)
