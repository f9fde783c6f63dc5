"""What SLiME and the episodes say to the embedded server, and what it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import NamedTuple

import aiohttp
import orjson
from aiohttp import web

from slime_swe.embedded.server_process import ServerProcess


class Aborted(NamedTuple):
    """A request that was aborted. so_far: its prompt and what was said. updates: how many weight updates had begun.
    asked: how often `so_far` had been a prompt."""

    so_far: tuple[int, ...]
    updates: int
    asked: int


@dataclass
class Wire:
    """A server between the two. calls: the paths that were called, in order. asked: how often each prompt came."""

    calls: list[str] = field(default_factory=list)
    asked: Counter[tuple[int, ...]] = field(default_factory=Counter)
    aborted: list[Aborted] = field(default_factory=list)

    @property
    def updates(self) -> int:
        return self.calls.count("/pause_generation")

    def left(self, aborted: Iterable[Aborted]) -> int:
        """How many of these requests were not made again, from where they were."""
        groups: dict[tuple[int, ...], list[Aborted]] = {}
        for one in aborted:
            groups.setdefault(one.so_far, []).append(one)
        again = {so_far: self.asked[so_far] - group[0].asked for so_far, group in groups.items()}
        return sum(max(0, len(group) - again[so_far]) for so_far, group in groups.items())

    def passed_on(self, path: str, body: bytes) -> bytes:
        """What the server gets of a request."""
        return body

    async def handle(self, http: aiohttp.ClientSession, server: str, request: web.Request) -> web.Response:
        body = await request.read()
        self.calls.append(request.path)
        prompt = tuple(orjson.loads(body)["input_ids"]) if request.path == "/generate" else None
        if prompt is not None:
            self.asked[prompt] += 1
        passed_on = self.passed_on(request.path, body)
        async with http.request(request.method, f"{server}{request.path_qs}", data=passed_on) as response:
            reply = await response.read()
        if prompt is not None and response.status == 200:
            said = orjson.loads(reply)
            if said["meta_info"]["finish_reason"]["type"] == "abort":
                so_far = (*prompt, *said["output_ids"])
                self.aborted.append(Aborted(so_far, self.updates, self.asked[so_far]))
        return web.Response(body=reply, status=response.status, content_type=response.content_type)


class WiredServer(ServerProcess):
    """The embedded server, reached over the `wire` of its class."""

    wire: Wire

    @classmethod
    def over(cls, wire: Wire) -> type[WiredServer]:
        return type("Wired", (cls,), {"wire": wire})

    async def __aenter__(self):
        await super().__aenter__()
        started = Future()
        self._thread = Thread(target=asyncio.run, args=[self._serve(started)])  # sync tests keep their own loop waiting
        self._thread.start()
        self.port, self._end = await asyncio.wrap_future(started)
        return self

    async def __aexit__(self, *exc):
        self._end()
        await asyncio.to_thread(self._thread.join)
        await super().__aexit__(*exc)

    async def _serve(self, started):
        ended, app = asyncio.Event(), web.Application(client_max_size=1 << 28)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
            app.router.add_route("*", "/{any:.*}", partial(self.wire.handle, http, f"http://{self.host}:{self.port}"))
            runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, self.host, 0).start()
            end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
            started.set_result((runner.addresses[0][1], end))
            await ended.wait()
            await runner.cleanup()
