"""A server that answers with one dialect, as scripted, and replies of every shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer

from slime_swe.rollout.proxy.conversation import Dialect, MessageCall, ProxyError, Reply, Request

LONG = "Ünïcode — \u2028 \x85 🙂 " * 100  # of many pieces, with what some clients take for the end of a line
VIEW = MessageCall("call_1", "view", '{"path":"a.py"}')
RUN = MessageCall("call_2", "run", f'{{"command":"echo {LONG}"}}')


def make_reply(text: str = "", *calls: MessageCall, finish: str | None = None) -> Reply:
    finish = finish or ("tool_calls" if calls else "stop")
    return Reply("r1", "policy", text, calls, finish, prompt_tokens=1000, completion_tokens=20, cached_tokens=600)


REPLIES = {
    "text": make_reply("Hello."),
    "long text": make_reply(LONG),
    "one call": make_reply("", VIEW),
    "text and a call": make_reply("I look.", VIEW),
    "parallel calls": make_reply("Both.", VIEW, RUN),
    "no arguments": make_reply("", MessageCall("call_1", "view", "{}")),
    "malformed arguments": make_reply("", MessageCall("call_1", "view", '{"path": "a'), RUN),
    "cut": make_reply("And th", finish="length"),
    "nothing": make_reply(),
}


@dataclass
class Stage:
    """`answer` is what the next request gets; an error comes within the stream where `late`."""

    dialect: Dialect
    url: str = ""
    key: str = "k"  # of its clients
    answer: Reply | ProxyError = field(default_factory=make_reply)
    late: bool = False
    requests: list[Request] = field(default_factory=list)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        try:
            request = self.dialect.parse(await http.read())
            if isinstance(self.answer, ProxyError) and not self.late:
                raise self.answer
        except ProxyError as error:
            return web.Response(status=error.status, body=self.dialect.error(error), content_type="application/json")
        self.requests.append(request)
        if not request.stream:
            return web.Response(body=self.dialect.reply(request, self.answer), content_type="application/json")
        return await self._stream(http, request)

    async def _stream(self, http: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        reply_id = "r1" if isinstance(self.answer, ProxyError) else self.answer.id
        await response.write(self.dialect.opening(request, reply_id, 0))
        for _ in range(2):
            await response.write(self.dialect.keep_alive(request, reply_id, 0))
        if isinstance(self.answer, ProxyError):
            await response.write(self.dialect.failed(self.answer, reply_id))
        else:
            for event in self.dialect.events(request, self.answer):
                await response.write(event)
        return response


@asynccontextmanager
async def staged(dialect: Dialect) -> AsyncIterator[Stage]:
    stage = Stage(dialect)
    app = web.Application()
    app.router.add_post("/{path:.*}", stage.handle)
    async with TestServer(app) as server:
        stage.url = str(server.make_url("")).rstrip("/")
        yield stage
