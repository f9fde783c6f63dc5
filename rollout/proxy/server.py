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
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import orjson
from aiohttp import web

from slime_swe.rollout.proxy.anthropic import AnthropicMessages
from slime_swe.rollout.proxy.chat_completions import ChatCompletions
from slime_swe.rollout.proxy.conversation import ProxyError, Reply, Request, Wire
from slime_swe.rollout.proxy.responses import Responses
from slime_swe.rollout.proxy.sessions import ID_BYTES, KEY_BYTES, Arrival, ProxySession

MAX_CONNECTIONS = 64  # of one sandbox
KEEP_ALIVE_SECONDS = 10.0
WIRES: Mapping[str, Wire] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": AnthropicMessages(),
}
_JSON = "application/json"
_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Proxy:
    """Serves the sessions that were added to it. Made by `open_proxy`; belongs to one event loop."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._sessions: dict[str, ProxySession] = {}
        self.url = ""
        self.key = secrets.token_urlsafe(KEY_BYTES)

    @asynccontextmanager
    async def serve(self, session: ProxySession, *sockets: socket.socket) -> AsyncIterator[str]:
        """Answer a session's requests inside the context, at the proxy's own address and on further listening sockets.

        Yields the session's path, to be appended to any of these addresses.
        """
        self._sessions[session.id] = session
        loop, http = asyncio.get_running_loop(), self._runner.server
        assert http is not None, "the proxy is not open"
        servers: list[asyncio.Server] = []
        try:
            for listening in sockets:
                servers.append(await loop.create_server(_ConnectionLimiter(http), sock=listening))
            yield f"/s/{session.id}"
        finally:
            self._sessions.pop(session.id, None)
            session.close()
            for server in servers:
                server.close()

    def routes(self) -> Iterator[web.RouteDef]:
        messages, chat = WIRES["/v1/messages"], WIRES["/v1/chat/completions"]
        for path, wire in WIRES.items():
            yield web.post(f"/s/{{session}}{path}", _guarded(wire, partial(self._speak, wire)))
        yield web.post("/s/{session}/v1/messages/count_tokens", _guarded(messages, partial(self._count, messages)))
        yield web.get("/s/{session}/v1/models", _guarded(chat, self._models))
        yield web.get("/sessions/{session}", _guarded(chat, self._history))
        yield web.delete("/sessions/{session}", _guarded(chat, self._history))
        yield web.route("*", "/{path:.*}", _guarded(chat, _nowhere))

    def _find(self, http: web.Request, key: str = "") -> ProxySession:
        """The session that a request names. Raises `ProxyError` if there is none, or if the request does not carry
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

    async def _speak(self, wire: Wire, http: web.Request) -> web.StreamResponse:
        session = self._find(http)
        with session.admit(wire) as arrival:
            request = await session.place(arrival, await _body(http, session, arrival))
            if request.stream:
                return await _stream(session, http, arrival, request)
            reply = await session.answer(arrival)
            response = web.Response(body=wire.reply(request, reply), content_type=_JSON)
            await response.prepare(http)
            await response.write_eof()
            session.delivered(arrival)
            return response

    async def _count(self, wire: Wire, http: web.Request) -> web.Response:
        session = self._find(http)
        with session.admit(wire, count=True) as arrival:
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


class _ConnectionLimiter:
    """Makes the protocol of each connection to one socket, up to a maximum number at once.

    Each connection costs this process a file descriptor, and the client is an agent, which may open any number.
    """

    def __init__(self, http: web.Server) -> None:
        self._http = http
        self._inside: set[asyncio.BaseProtocol] = set()
        self._entering: set[asyncio.BaseProtocol] = set()  # made, and not yet seen connected

    def __call__(self) -> asyncio.BaseProtocol:
        connected = set(self._http.connections)
        self._inside = (self._inside | self._entering) & connected
        self._entering -= connected
        if len(self._inside) + len(self._entering) >= MAX_CONNECTIONS:
            return _Refused()
        protocol = self._http()
        self._entering.add(protocol)
        return protocol


class _Refused(asyncio.Protocol):
    """Ends a connection as it begins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@asynccontextmanager
async def open_proxy(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Proxy]:
    """A proxy that listens on `host` (port 0: a free one), and on every socket that `Proxy.serve` is given."""
    app = web.Application()
    # A client that goes away cancels its handler, and with it what is being sampled for it.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    proxy = Proxy(runner)
    app.add_routes(proxy.routes())
    await runner.setup()
    # A full collection of garbage looks at every object of the process, and takes a quarter of a second where a model's
    # libraries are loaded. Large requests cause it, so that what is there already is left out of it meanwhile.
    gc.freeze()
    try:
        await web.TCPSite(runner, host, port).start()
        name, number = runner.addresses[0][:2]
        proxy.url = f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
        yield proxy
    finally:
        gc.unfreeze()
        await runner.cleanup()


def _guarded(wire: Wire, handler: Handler) -> Handler:
    """The handler, whose errors are replies in the protocol's form."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ProxyError as error:
            return web.Response(status=error.status, body=wire.error(error), content_type=_JSON)

    return handle


async def _stream(session: ProxySession, http: web.Request, arrival: Arrival, request: Request) -> web.StreamResponse:
    """The opening at once, keep-alive events while the policy samples, and then the reply."""
    wire = arrival.wire
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    await response.prepare(http)
    stamp = (secrets.token_hex(ID_BYTES), int(time.time()))
    try:
        await response.write(wire.opening(request, *stamp))
        try:
            reply = await _waiting(session.answer(arrival), response, wire.keep_alive(request, *stamp))
        except ProxyError as error:
            await response.write(wire.failed(error, stamp[0]))
        else:
            for event in wire.events(request, replace(reply, id=stamp[0], created=stamp[1])):
                await response.write(event)
        await response.write_eof()
    except ConnectionError:  # the client has gone: it may come again for the same
        return response
    session.delivered(arrival)
    return response


async def _waiting(reply: Awaitable[Reply], response: web.StreamResponse, sign: bytes) -> Reply:
    task = asyncio.ensure_future(reply)
    try:
        while not (await asyncio.wait({task}, timeout=KEEP_ALIVE_SECONDS))[0]:
            await response.write(sign)
        return task.result()
    finally:
        task.cancel()


async def _nowhere(http: web.Request) -> web.StreamResponse:
    paths = ", ".join(WIRES)
    raise ProxyError("not_found", f"nothing is at {http.method} {http.path[:200]}: a session has /s/<session>{paths}")


async def _body(http: web.Request, session: ProxySession, arrival: Arrival) -> bytes:
    session.hold(arrival, http.content_length or 0)
    body = bytearray()
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) > arrival.bytes_held:  # the client did not say how long it is
            session.hold(arrival, len(body) - arrival.bytes_held)
    return bytes(body)


def _require_key(http: web.Request, key: str, whose: str) -> None:
    bearer = http.headers.get("Authorization", "")
    given = bearer[7:].strip() if bearer.startswith("Bearer ") else http.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
        raise ProxyError("authentication", f"the key is not {whose}: send it as a Bearer token or as x-api-key")
