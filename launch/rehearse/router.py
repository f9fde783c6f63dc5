"""A router in place of PyPI's `sglang-router`, which drops `return_routed_experts`: it passes on what it gets as it is.

    python -m slime_swe.launch.rehearse.router --port 30000

SLiME's engines register with it, where `serving.router_ip` and `serving.router_port` name it. The requests of one
session go to one engine. Not covered: load, retries, engines that are gone, streamed answers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from zlib import crc32

import aiohttp
import orjson
from aiohttp import web

from slime_swe.rollout.client import SESSION

MAX_BODY = 1 << 28  # bytes


class Router:
    """A router that passes requests on as they are. workers: the engines' URLs by their ids."""

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self.workers = {f"worker-{place}": url for place, url in enumerate(urls)}
        self._ids = itertools.count(len(self.workers))
        self._turns = itertools.count()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/workers", self.add)
        app.router.add_get("/workers", self.list)
        app.router.add_delete("/workers/{id}", self.remove)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        app.cleanup_ctx.append(self._connections)
        return app

    async def _connections(self, app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as self._http:
            yield

    async def add(self, request: web.Request) -> web.Response:
        url = orjson.loads(await request.read())["url"]
        name = next((name for name, known in self.workers.items() if known == url), f"worker-{next(self._ids)}")
        self.workers[name] = url
        return web.json_response({"worker_id": name, "url": url}, status=202)

    async def list(self, request: web.Request) -> web.Response:
        found = [{"id": name, "url": url} for name, url in self.workers.items()]
        return web.json_response({"workers": found, "total": len(found)})

    async def remove(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.workers.pop(request.match_info["id"], None) else 404)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def pass_on(self, request: web.Request) -> web.Response:
        urls = [*self.workers.values()]
        if not urls:
            return web.Response(status=503, text="no engine has registered yet")
        session = request.headers.get(SESSION)
        place = next(self._turns) if session is None else crc32(session.encode())
        url = f"{urls[place % len(urls)]}{request.path_qs}"
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        try:
            async with self._http.request(request.method, url, data=await request.read(), headers=headers) as response:
                answer = await response.read()
                return web.Response(body=answer, status=response.status, content_type=response.content_type)
        except aiohttp.ClientConnectionError as error:
            return web.Response(status=502, text=f"{url}: {error!r}")


async def serve(router: Router, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, int]:
    """Serve the router; returns the runner, to be cleaned up in the end, and the port. A request whose client goes away
    is dropped."""
    runner = web.AppRunner(router.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, runner.addresses[0][1]


async def _forever(host: str, port: int) -> None:
    await serve(Router(), host, port)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m slime_swe.launch.rehearse.router", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(_forever(given.host, given.port))


if __name__ == "__main__":
    main()
