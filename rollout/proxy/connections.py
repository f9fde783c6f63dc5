"""The connections of clients: how many there are, how each ended, and one line of log for what is not HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, MutableMapping
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SHOWN = 200  # characters of an error


class Connection(asyncio.Protocol):
    """A protocol that passes everything on to aiohttp's, and remembers how the connection ended."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._http: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._was_reset = False
        self.received = 0  # bytes, of all requests

    def is_unread(self, received: int) -> bool:
        """Say whether a client has not read all of an answer to a request that ended with the byte of this number, as
        far as TCP can tell.

        HTTP/1.1 clients send the next request once they have read the answer: then all of it was read, and what waits
        in the socket belongs to a later answer. A client that closes a connection before it has read everything resets
        it. One that keeps it open and does not read is known only once its buffers are full.
        """
        if self.received > received:
            return False
        if self._transport is None:
            return self._was_reset
        sock: socket.socket = self._transport.get_extra_info("socket")
        unsent = ioctl(sock.fileno(), TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() > 0 or unsent != bytes(4)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        http = self._connections.enter(self)
        if http is None:
            transport.abort()
            return
        self._http, self._transport = http, transport
        http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self._http is not None:
            self._http.data_received(data)

    def eof_received(self) -> None:
        if self._http is not None:
            self._http.eof_received()

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        http, self._http, self._transport = self._http, None, None
        self._was_reset = exc is not None
        if http is not None:
            self._connections.leave(http)
            http.connection_lost(exc)


class Connections:
    """The factory of connections to one address, at most `most` at once; further ones end as they begin.

    Each connection costs this process a file descriptor, and the client is an agent, which may open any number.
    `known` has those of all addresses, by aiohttp's protocol.
    """

    def __init__(
        self, make: Callable[[], web.RequestHandler], known: MutableMapping[Any, Connection], most: int | None = None
    ) -> None:
        self._make = make
        self._known = known
        self._most = most
        self._count = 0

    def __call__(self) -> Connection:
        return Connection(self)

    def enter(self, connection: Connection) -> web.RequestHandler | None:
        if self._most is not None and self._count >= self._most:
            return None
        http = self._make()
        self._known[http] = connection
        self._count += 1
        return http

    def leave(self, http: web.RequestHandler) -> None:
        del self._known[http]
        self._count -= 1


class OneLine(logging.LoggerAdapter[logging.Logger]):
    """A logger for aiohttp, with one line for a request that is not HTTP, and a traceback for what is our own fault."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if isinstance(exc_info, HttpProcessingError | web.RequestPayloadError):
            self.warning("a request was refused, since it is not HTTP: %s", " ".join(str(exc_info).split())[:_SHOWN])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)
