"""A server on this machine that passes every request on to a URL, with two headers added.

SLiME reaches an external engine at `http://host:port` and sends no key; Modal's URLs are https and ask for one.
This does not guard the port that it opens: bind it to an address that only the training job reaches.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

_HOP = frozenset(
    {"connection", "host", "keep-alive", "transfer-encoding", "upgrade", "content-length", "content-encoding"}
)
CHUNK = 1 << 16  # bytes


def forwarder(target: str, headers: Mapping[str, str]) -> web.Application:
    """An application that answers as `target` does, and 502 with the reason where that can't be reached."""
    application = web.Application(client_max_size=1 << 30)
    session = web.AppKey("session", ClientSession)

    async def open_session(app: web.Application) -> None:
        app[session] = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))

    async def close_session(app: web.Application) -> None:
        await app[session].close()

    async def forward(request: web.Request) -> web.StreamResponse:
        sent = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = f"{target.rstrip('/')}{request.rel_url}"
        try:
            body = await request.read()
            async with request.app[session].request(
                request.method, url, data=body, headers=sent | dict(headers)
            ) as got:
                kept = {name: value for name, value in got.headers.items() if name.lower() not in _HOP}
                answer = web.StreamResponse(status=got.status, headers=kept)
                await answer.prepare(request)
                async for chunk in got.content.iter_chunked(CHUNK):
                    await answer.write(chunk)
                await answer.write_eof()
                return answer
        except ClientError as error:
            return web.Response(status=502, text=f"{target} can't be reached: {error}")

    application.on_startup.append(open_session)
    application.on_cleanup.append(close_session)
    application.router.add_route("*", "/{path:.*}", forward)
    return application
