"""A sandbox's ports over Ray: `NodePorts` where the sandbox is, `DriverPorts` where the server is.

No network carries them but Ray's own, which both processes are in already: each piece of a connection is a call of the
node's actor, made by the driver. So nothing listens on any machine's network, a sandbox reaches the server that the
driver gives the port to and nothing else, and nobody but that sandbox reaches that server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from slime_swe.sandbox.base import SandboxError

T = TypeVar("T")
PIECE_BYTES = 64 << 10  # Ray sends up to 100 KiB with the call itself
MAX_CONNECTIONS = 64  # of one port at once; more wait to be accepted


class NodePorts:
    """The ports of one sandbox, and their connections by number."""

    def __init__(self) -> None:
        self._ports: dict[int, socket.socket] = {}
        self._connections: dict[int, socket.socket] = {}
        self._numbers = itertools.count()
        self._waiting: set[asyncio.Future[Any]] = set()

    def add(self, port: int, listening: socket.socket) -> None:
        self._ports[port] = listening

    async def accept(self, port: int) -> int:
        connection, _ = await self._wait(asyncio.get_running_loop().sock_accept(_of(self._ports, port)))
        connection.setblocking(False)
        number = next(self._numbers)
        self._connections[number] = connection
        return number

    async def receive(self, connection: int) -> bytes:
        """Return what has come; empty where the client sends no more."""
        there = _of(self._connections, connection)
        return await self._wait(asyncio.get_running_loop().sock_recv(there, PIECE_BYTES))

    async def send(self, connection: int, piece: bytes) -> None:
        await self._wait(asyncio.get_running_loop().sock_sendall(_of(self._connections, connection), piece))

    async def hang_up(self, connection: int) -> None:
        there = self._connections.pop(connection, None)
        if there is not None:
            _close(there)

    async def close_port(self, port: int) -> None:
        listening = self._ports.pop(port, None)
        if listening is not None:
            _close(listening)

    def close(self) -> None:
        """End every call that waits, and every connection."""
        for waiting in self._waiting:
            waiting.cancel()
        for there in (*self._connections.values(), *self._ports.values()):
            _close(there)
        self._connections.clear()
        self._ports.clear()

    async def _wait(self, operation: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(operation)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            raise ConnectionAbortedError("the sandbox is not open") from None


class Port(socket.socket):
    """A listening socket whose connections are handed to it by `deliver` in this process: it has no address.

    A server may do with it what it does with a TCP socket. `SSLSocket` is another whose `accept` is its own.
    """

    def __init__(self, port: int) -> None:
        here, self.feed = socket.socketpair()
        super().__init__(fileno=here.detach())
        self.feed.setblocking(False)
        self.port = port

    def listen(self, backlog: int = 0) -> None:
        """Do nothing: it listens already."""

    def getsockname(self) -> Any:
        return "127.0.0.1", self.port

    def accept(self) -> tuple[socket.socket, Any]:
        _, descriptors, _, _ = socket.recv_fds(self, 1, 1)
        if not descriptors:
            raise ConnectionAbortedError("the sandbox is not open")
        return socket.socket(fileno=descriptors[0]), ("127.0.0.1", 0)

    def deliver(self) -> socket.socket:
        """Open a connection to the port and return its other end. Raises `OSError` where the port has been closed."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.feed, [b"c"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours


Call = Callable[..., Awaitable[Any]]


class DriverPorts:
    """Gives out the ports of one sandbox. call: calls a method of its `NodePorts`, and raises `SandboxError` where the
    node has gone.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._given: dict[Port, asyncio.Task[None]] = {}

    async def closed(self) -> None:
        """Wait until ports that the server has closed are so inside."""
        stale = [task for port, task in self._given.items() if port.fileno() < 0]
        if stale:
            await asyncio.wait(stale)

    def give(self, number: int) -> socket.socket:
        """Return the socket for a port that listens inside."""
        port = Port(number)
        port.setblocking(False)
        self._given[port] = asyncio.create_task(self._forward(port))
        self._given[port].add_done_callback(lambda _: self._given.pop(port, None))
        return port

    async def close(self) -> None:
        """Close the ports that are still open; the loop may be watching for connections."""
        given = dict(self._given)
        for port in given:
            if port.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(port)
                port.close()
        for task in given.values():
            task.cancel()
        if given:
            await asyncio.wait(given.values())

    async def _forward(self, port: Port) -> None:
        """Carry every connection, until the server closes the port, the sandbox is left, or its node goes."""
        loop = asyncio.get_running_loop()
        room = asyncio.Semaphore(MAX_CONNECTIONS)
        under_way: set[asyncio.Task[Any]] = set()
        closed = loop.create_task(loop.sock_recv(port.feed, 1))  # which nothing is ever written to
        try:
            while True:
                accepting = loop.create_task(self._accept(room, port))
                under_way.add(accepting)
                await asyncio.wait({accepting, closed}, return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    break
                under_way.remove(accepting)
                here, number = accepting.result()
                carrying = loop.create_task(self._carry(here, number))
                under_way.add(carrying)
                carrying.add_done_callback(under_way.discard)
                carrying.add_done_callback(lambda _: room.release())
        except (OSError, SandboxError):
            pass  # the server or the sandbox has gone
        finally:
            await _ended(closed, *under_way)
            port.feed.close()
            with contextlib.suppress(SandboxError, OSError):
                await self._call("close_port", port.port)

    async def _accept(self, room: asyncio.Semaphore, port: Port) -> tuple[socket.socket, int]:
        await room.acquire()
        number = await self._call("accept", port.port)
        try:
            return port.deliver(), number
        except OSError:
            await self._call("hang_up", number)
            raise

    async def _carry(self, here: socket.socket, number: int) -> None:
        """Carry a connection both ways; the server's end ends the connection, the client's only its own half."""
        loop = asyncio.get_running_loop()
        coming = loop.create_task(self._bring(here, number))
        try:
            while piece := await loop.sock_recv(here, PIECE_BYTES):
                await self._call("send", number, piece)
        except (OSError, SandboxError):
            pass
        finally:
            await _ended(coming)
            here.close()
            with contextlib.suppress(SandboxError, OSError):
                await self._call("hang_up", number)

    async def _bring(self, here: socket.socket, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            while piece := await self._call("receive", number):
                await loop.sock_sendall(here, piece)
            here.shutdown(socket.SHUT_WR)
        except (OSError, SandboxError):
            with contextlib.suppress(OSError):
                here.shutdown(socket.SHUT_RDWR)  # which ends the other way too


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # was seen


def _of(sockets: Mapping[int, socket.socket], number: int) -> socket.socket:
    if number not in sockets:
        raise ConnectionAbortedError("it has been closed")
    return sockets[number]


def _close(there: socket.socket) -> None:
    if there.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(there)
        asyncio.get_running_loop().remove_writer(there)
        there.close()
