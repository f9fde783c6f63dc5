"""`DockerSandbox`: a container whose first process is the driver, and how its streams and ports are reached."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.rollout.sandbox.base import SandboxError, SandboxSpec
from slime_swe.rollout.sandbox.docker.changes import find_changes
from slime_swe.rollout.sandbox.docker.client import NOT_FOUND, DockerError, call
from slime_swe.rollout.sandbox.guest import kernel
from slime_swe.rollout.sandbox.image.changes import Found, Originals
from slime_swe.rollout.sandbox.image.driver import STREAM_BYTES, ShellDied, Stream, await_ready
from slime_swe.rollout.sandbox.image.sandbox import ImageSandbox

START_SECONDS = 120.0
_CONFLICT = 409  # it is not running, or being removed already
_REMOVAL_PAUSES = (0.1, 0.5)  # seconds

Started = tuple[str, Stream, Originals]  # a container's id, its driver, and what its image holds


class DockerSandbox(ImageSandbox):
    """`take` gives a started container, new or from the warm pool."""

    def __init__(self, client: Any, take: Callable[[], Awaitable[Started]], image: Image, spec: SandboxSpec) -> None:
        super().__init__(image, spec)
        self._client = client
        self._take = take
        self._id: str | None = None

    async def _start_driver(self) -> Stream:
        if self._id is None:
            self._id, stream, self._originals = await self._take()
            return stream
        try:
            return await start(self._client, self._id)
        except DockerError as error:
            if error.status in (None, NOT_FOUND):  # the daemon is gone, or someone has removed the container
                raise
            raise ShellDied(str(error)) from error

    async def _interrupt(self) -> None:
        await self._signal("SIGUSR1")

    async def _kill(self) -> None:
        if self._id is not None:
            await self._signal("SIGKILL")
            await call("docker does not end a container", self._client.wait, self._id)

    async def _listen_inside(self, port: int) -> socket.socket:
        """One whose driver is started again has another network: its ports are gone."""
        assert self._id is not None, "not started"
        found = await call("docker does not find a container", self._client.inspect_container, self._id)
        if not found["State"]["Running"]:
            raise ShellDied("the container has ended")
        return await asyncio.to_thread(listen, self._id, found["State"]["Pid"], port)

    async def _find_changes(self, size_before: Callable[[str], int]) -> Found:
        assert self._id is not None and self._originals is not None, "not started"
        arguments = (self._client, self._id, self._image.folder, self._originals, size_before)
        return await call("docker could not list what has changed", find_changes, *arguments)

    async def _remove(self) -> None:
        if self._id is not None:
            container, self._id = self._id, None
            await asyncio.shield(remove(self._client, container))

    async def _signal(self, name: str) -> None:
        if self._id is not None:
            try:
                await call(f"docker could not send {name}", self._client.kill, self._id, name)
            except DockerError as error:
                if error.status not in (NOT_FOUND, _CONFLICT):
                    raise


async def start(client: Any, container: str) -> Stream:
    """Start a container and its driver. Raises `DockerError`, `ShellDied`."""
    stream = await AttachedStream.open(client, container)
    try:
        await call("docker could not start a container", client.start, container)
        await await_ready(stream, START_SECONDS)
    except BaseException:
        stream.close()
        raise
    return stream


async def remove(client: Any, container: str) -> None:
    """End a container and remove it, with its volumes; one that ends by itself meanwhile is tried again.

    Raises `DockerError`.
    """
    for pause in (*_REMOVAL_PAUSES, None):
        try:
            await call("docker could not remove a container", client.remove_container, container, force=True, v=True)
            return
        except DockerError as error:
            if error.status in (NOT_FOUND, _CONFLICT):
                return
            if pause is None:
                raise
            await asyncio.sleep(pause)


_HEADER_BYTES = 8


class AttachedStream(Stream):
    """In pieces, each with its length before it, as the daemon sends them."""

    _left = 0  # of the piece that is being read

    @classmethod
    async def open(cls, client: Any, container: str) -> AttachedStream:
        """Attach to a container, which need not have started. Raises `DockerError`."""
        sock = await call("docker could not attach to a container", _attach, client, container)
        return cls(*await asyncio.open_connection(sock=sock, limit=STREAM_BYTES))

    async def read(self) -> bytes:
        try:
            while not self._left:
                header = await self._reader.readexactly(_HEADER_BYTES)
                self._left = int.from_bytes(header[4:], "big")
            piece = await self._reader.read(min(self._left, STREAM_BYTES))
        except (OSError, asyncio.IncompleteReadError):
            return b""
        self._left -= len(piece)
        return piece


def _attach(client: Any, container: str) -> socket.socket:
    attached = client.attach_socket(container, {"stdin": 1, "stdout": 1, "stream": 1})
    try:
        raw = getattr(attached, "_sock", attached)
        if isinstance(raw, ssl.SSLSocket) or not isinstance(raw, socket.socket):
            raise UserError(
                "docker sandboxes need the daemon's own socket (DOCKER_HOST=unix:///var/run/docker.sock, or a tunnel "
                "to it), not TLS"
            )
        sock = socket.socket(fileno=os.dup(raw.fileno()))
    finally:
        attached.close()
    sock.setblocking(False)
    return sock


_ADVICE = (
    "docker sandboxes give out ports only to root (CAP_SYS_ADMIN, CAP_SYS_PTRACE) on the daemon's own machine and in "
    "its pid namespace: run this so, beside the daemon, or use rollout.sandbox=overlay, which needs no root"
)


def listen(container: str, pid: int, port: int) -> socket.socket:
    """A socket that listens there. `pid`: the container's first process, as the daemon knows it.

    Raises `SandboxError` where that is out of reach, `OSError` where the port can't be had.
    """
    try:
        namespace = _namespace(container, pid)
    except OSError as error:
        raise SandboxError(f"the network of a container can't be entered: {error}; {_ADVICE}") from error
    try:
        with ThreadPoolExecutor(1) as its_own:  # a namespace is a thread's: this one ends in that of the container
            return its_own.submit(kernel.listen, namespace, port).result()
    except PermissionError as error:
        raise SandboxError(f"the network of a container can't be entered: {error}; {_ADVICE}") from error
    finally:
        os.close(namespace)


def _namespace(container: str, pid: int) -> int:
    """Of the process, if it is the container's: elsewhere than beside the daemon its pid is another process's."""
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)  # this very one, should the pid be used again
    try:
        groups = os.open("cgroup", os.O_RDONLY, dir_fd=process)
        with open(groups, encoding="utf-8", errors="replace") as file:
            if container not in file.read():
                raise ProcessLookupError(f"process {pid} is not of the container {container[:12]}")
        return os.open("ns/net", os.O_RDONLY, dir_fd=process)
    finally:
        os.close(process)
