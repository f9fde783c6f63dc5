"""`Proxy`: an HTTP server that real agents use as their model's, and that records every token they make it sample.

| path below `/s/<session>` | protocol |
| --- | --- |
| `/v1/chat/completions` | OpenAI chat completions |
| `/v1/responses` | OpenAI responses |
| `/v1/messages`, `/v1/messages/count_tokens` | Anthropic messages |
| `/v1/models` | the one model there is |

A client names its session in the path and proves it by the session's key, as an API key. `GET /sessions/<session>`
returns the record so far; `DELETE` returns the record and clears it. Both take the proxy's own key, which no agent has.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from aiohttp import HttpVersion11, web

from slime_swe.rollout.proxy.anthropic import AnthropicMessages
from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.connections import Connection, Connections, OneLine
from slime_swe.rollout.proxy.conversation import Dialect, ProxyError, Request
from slime_swe.rollout.proxy.responses import Responses
from slime_swe.rollout.proxy.sessions import ID_BYTES, KEY_BYTES, Answer, Arrival, ProxySession

MAX_CONNECTIONS = 64  # of one sandbox
KEEP_ALIVE_SECONDS = 10.0
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": AnthropicMessages(),
}
_JSON = "application/json"
_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


_OPEN: set[Proxy] = set()  # of this process


class Proxy:
    """A server of the sessions that were added to it. `open_proxy` makes it, and it belongs to one event loop."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._sessions: dict[str, ProxySession] = {}
        self._connections: dict[Any, Connection] = {}
        self.url = ""
        self.key = secrets.token_urlsafe(KEY_BYTES)

    @asynccontextmanager
    async def serve(self, session: ProxySession, *sockets: socket.socket) -> AsyncIterator[str]:
        """Answer a session's requests inside the context, at the proxy's own address and on further listening sockets.

        Yields the session's path, to be appended to any of these addresses.
        """
        self._sessions[session.id] = session
        servers: list[asyncio.Server] = []
        try:
            for listening in sockets:
                servers.append(await self.listen(MAX_CONNECTIONS, sock=listening))
            yield f"/s/{session.id}"
        finally:
            self._sessions.pop(session.id, None)
            session.close()
            for server in servers:
                server.close()

    async def listen(self, most: int | None, **where: Any) -> asyncio.Server:
        """Take at most so many connections at once; `where` is as `create_server` takes it."""
        make = self._runner.server
        assert make is not None, "the proxy is not open"
        return await asyncio.get_running_loop().create_server(Connections(make, self._connections, most), **where)

    def routes(self) -> Iterator[web.RouteDef]:
        messages, chat = DIALECTS["/v1/messages"], DIALECTS["/v1/chat/completions"]
        for path, dialect in DIALECTS.items():
            yield _route("POST", f"/s/{{session}}{path}", _guarded(dialect, partial(self._speak, dialect)))
        count = partial(self._count, messages)
        yield _route("POST", "/s/{session}/v1/messages/count_tokens", _guarded(messages, count))
        yield _route("GET", "/s/{session}/v1/models", _guarded(chat, self._models))
        yield _route("GET", "/sessions/{session}", _guarded(chat, self._history))
        yield _route("DELETE", "/sessions/{session}", _guarded(chat, self._history))
        yield _route("*", "/{path:.*}", _guarded(chat, _nowhere))

    def _find(self, http: web.Request, key: str = "") -> ProxySession:
        """Find the session that a request names. Raises `ProxyError` if there is none, or if the request does not carry
        `key` (by default the session's own).
        """
        if key:
            _require_key(http, key, "the proxy's")
        session = self._sessions.get(http.match_info["session"])
        if session is None:
            raise ProxyError("not_found", "there is no such session, or it has ended")
        if not key:
            _require_key(http, session.key, "this session's")
        return session

    async def _speak(self, dialect: Dialect, http: web.Request) -> web.StreamResponse:
        session = self._find(http)
        with session.admit(dialect) as arrival:
            request = await session.place(arrival, await _body(http, session, arrival))
            if request.stream:
                return await self._stream(session, http, arrival, request)
            answer = await session.answer(arrival)
            response = web.Response(body=dialect.reply(request, answer.reply), content_type=_JSON)
            received = self._received(http)
            with suppress(ConnectionError):  # the client has gone: it may come again for the same
                await response.prepare(http)
                answer.begun = True
                await response.write_eof()
                answer.sent(self._connections.get(http.protocol), received)
            return response

    async def _stream(
        self, session: ProxySession, http: web.Request, arrival: Arrival, request: Request
    ) -> web.StreamResponse:
        """Send the opening at once, keep-alive events while the policy samples, and then the reply."""
        dialect = arrival.dialect
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        stamp = (secrets.token_hex(ID_BYTES), int(time.time()))
        received = self._received(http)
        with suppress(ConnectionError):
            await response.prepare(http)
            await response.write(dialect.opening(request, *stamp))
            try:
                answer = await _waiting(session.answer(arrival), response, dialect.keep_alive(request, *stamp))
            except ProxyError as error:
                await response.write(dialect.failed(error, stamp[0]))
                await response.write_eof()
                return response
            answer.begun = True
            for event in dialect.events(request, replace(answer.reply, id=stamp[0], created=stamp[1])):
                await response.write(event)
            await response.write_eof()
            answer.sent(self._connections.get(http.protocol), received)
        return response

    def _received(self, http: web.Request) -> int:
        """Return how many bytes have come by the request's connection."""
        connection = self._connections.get(http.protocol)
        return connection.received if connection is not None else 0

    async def _count(self, dialect: Dialect, http: web.Request) -> web.Response:
        session = self._find(http)
        with session.admit(dialect, count=True) as arrival:
            tokens = await session.count(arrival, await _body(http, session, arrival))
            return web.json_response({"input_tokens": tokens})

    async def _models(self, http: web.Request) -> web.Response:
        name = self._find(http).policy.model
        model = {"id": name, "object": "model", "type": "model", "display_name": name, "created": 0,
                 "owned_by": "policy"}  # fmt: skip
        return web.json_response({"object": "list", "data": [model], "has_more": False})

    async def _history(self, http: web.Request) -> web.Response:
        session = self._find(http, self.key)
        recorded = orjson.dumps(session.history())
        if http.method == "DELETE":
            session.forget()
        return web.Response(body=recorded, content_type=_JSON)


@asynccontextmanager
async def open_proxy(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Proxy]:
    """Open a proxy that listens on `host` (port 0: a free one), and on every socket that `Proxy.serve` is given."""
    app = web.Application()
    # A client that goes away cancels its handler, and with it what is being sampled for it.
    log = OneLine(logging.getLogger(__name__), None)
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, logger=log, auto_decompress=False
    )
    proxy = Proxy(runner)
    app.add_routes(proxy.routes())
    await runner.setup()
    # A full collection of garbage looks at every object of the process, and takes a quarter of a second where a model's
    # libraries are loaded. Large requests cause it, so what is there already is left out of it while a proxy is open.
    # A further proxy freezes nothing: the sessions of the first would never be collected.
    if not _OPEN:
        gc.freeze()
    _OPEN.add(proxy)
    try:
        listening = await proxy.listen(None, host=host, port=port)
        try:
            name, number = listening.sockets[0].getsockname()[:2]
            proxy.url = f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
            yield proxy
        finally:
            listening.close()
    finally:
        _OPEN.discard(proxy)
        if not _OPEN:
            gc.unfreeze()
        await runner.cleanup()


def _route(method: str, path: str, handler: Handler) -> web.RouteDef:
    return web.route(method, path, handler, expect_handler=_ask_for_body)


async def _ask_for_body(http: web.Request) -> None:
    """Send what a client waits for that has sent `Expect: 100-continue`, unless it has gone."""
    expected = http.headers.get("Expect", "")
    if http.version < HttpVersion11:
        return  # RFC 9110, 10.1.1: the header means nothing there
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"there is no expectation {expected[:200]!r}")
    with suppress(ConnectionError):
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _guarded(dialect: Dialect, handler: Handler) -> Handler:
    """Wrap a handler so that its errors are replies in the protocol's form."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ProxyError as error:
            return web.Response(status=error.status, body=dialect.error(error), content_type=_JSON)

    return handle


async def _waiting(answer: Awaitable[Answer], response: web.StreamResponse, sign: bytes) -> Answer:
    task = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({task}, timeout=KEEP_ALIVE_SECONDS))[0]:
            await response.write(sign)
        return task.result()
    finally:
        task.cancel()


async def _nowhere(http: web.Request) -> web.StreamResponse:
    paths = ", ".join(DIALECTS)
    raise ProxyError("not_found", f"nothing is at {http.method} {http.path[:200]}: a session has /s/<session>{paths}")


async def _body(http: web.Request, session: ProxySession, arrival: Arrival) -> bytes:
    """Read the body, unless it is compressed: 64 KiB can hold 64 MiB, which aiohttp would unpack in the event loop."""
    encoding = http.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ProxyError(
            "invalid_request", f"Content-Encoding: {encoding[:40]!r} was given, only 'identity' is allowed"
        )
    session.hold(arrival, http.content_length or 0)
    body = bytearray()
    try:
        async for chunk in http.content.iter_any():
            body += chunk
            if len(body) > arrival.bytes_held:  # the client did not say how long it is
                session.hold(arrival, len(body) - arrival.bytes_held)
    except web.RequestPayloadError as error:
        raise ProxyError("invalid_request", f"the body can't be read: {' '.join(str(error).split())}") from error
    return bytes(body)


def _require_key(http: web.Request, key: str, whose: str) -> None:
    bearer = http.headers.get("Authorization", "")
    given = bearer[7:].strip() if bearer.startswith("Bearer ") else http.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
        raise ProxyError("authentication", f"the key is not {whose}: send it as a Bearer token or as x-api-key")
