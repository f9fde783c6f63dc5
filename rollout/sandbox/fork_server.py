"""`ForkServer`: the one long-lived process from which sandboxes are forked, and `Channel`, the way to one of them.

With bubblewrap the supervisor (`rollout.sandbox.guest.supervisor`) lives in its own user, mount, pid, network, IPC and
UTS namespaces, sees a read-only system and nothing of the host's files but /usr and the Python installation, and holds
its capabilities inside its user namespace only. Every sandbox is a fork that unshares again and drops them all.
Without bubblewrap the same supervisor is an ordinary process: see `UNPROTECTED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import posixpath
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any

from slime_swe.rollout.sandbox import bubblewrap
from slime_swe.rollout.sandbox.base import Limits, SandboxError
from slime_swe.rollout.sandbox.guest import wire
from slime_swe.rollout.sandbox.guest.confinement import REPOSITORY
from slime_swe.rollout.sandbox.guest.python_fork import MAX_SCRIPTS

START_SECONDS = 60.0
END_SECONDS = 5.0
RUNS_TO_COMPILE = 3
MAX_SCRIPT_BYTES = 10_000  # six times as much, at the worst, in the one packet that the supervisor reads
UNPROTECTED = (
    "commands can reach the network, read the host's files, write what this user may write, see and signal this "
    "user's other processes, start any number of processes and fill the disk; only time, memory, file size and "
    "output are limited"
)


class ForkServerError(SandboxError):
    """The fork server could not be started; the message holds what it printed."""


class GuestProcess:
    """A process of the guest's code that is asked over a socket. With it or the socket ends all that it has started."""

    def __init__(self, start: Callable[[socket.socket, IO[bytes]], subprocess.Popen[bytes]]) -> None:
        """Blocks. `start` gets the other end of the socket, and a file for its errors. Raises `ForkServerError`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_SECONDS)  # and later, where the process lags by hundreds of requests
        greeting, problem = b"", ""
        try:
            with theirs:
                self._process = start(theirs, self._errors)
            greeting = self._control.recv(64)
        except OSError as error:
            problem = f"{error}; "
        if greeting != b"ready":
            self.close()
            raise ForkServerError(f"the process that forks sandboxes did not start: {problem}{self._printed()}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End it, and with it every process that it has started. Blocks."""
        self._control.close()
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _printed(self) -> str:
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
        return f"it printed: {said}" if said else "it printed nothing"


class ForkServer(GuestProcess):
    """Owns the supervisor process; every sandbox of it dies with it."""

    def __init__(self, *, contained: bool) -> None:
        self.contained = contained
        self._folder = "" if contained else tempfile.mkdtemp(prefix="slime-swe-")
        self._runs: Counter[tuple[str, bytes]] = Counter()
        plain = partial(bubblewrap.start_plain, folder=self._folder)
        super().__init__(bubblewrap.start_contained if contained else plain)

    def spawn(self, limits: Limits) -> socket.socket:
        """Ask for a sandbox; the non-blocking socket on which it will answer. Raises `SandboxError` where it can't."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps(dataclasses.asdict(limits)).encode()], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise SandboxError(f"the fork server does not answer: {error}; {self._printed()}") from error
        return ours

    def note_run(self, path: str, source: bytes) -> None:
        """A sandbox is about to run this script as it was given it. Scripts that many run are compiled once for all."""
        if not self.contained or len(source) > MAX_SCRIPT_BYTES:
            return
        script = posixpath.normpath(posixpath.join(REPOSITORY, path))
        self._runs[script, source] += 1
        if self._runs[script, source] == RUNS_TO_COMPILE:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._control.send(json.dumps({"script": script, "source": source.decode()}).encode())
        if len(self._runs) > MAX_SCRIPTS:
            self._runs.clear()

    def close(self) -> None:
        """End every sandbox and the supervisor, and remove what they left."""
        super().close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


MAX_JSON_BYTES = 64 << 20
CLOSE_SECONDS = 5.0


class Channel:
    """Requests and answers, one at a time. A cancelled request leaves the channel usable: its answer is skipped."""

    def __init__(self, sock: socket.socket, max_blob_bytes: int) -> None:
        self._socket = sock
        self._max_blob_bytes = max_blob_bytes
        self._lock = asyncio.Lock()
        self._received = bytearray()
        self._abandoned = 0  # answers to come that nobody waits for

    async def call(
        self, request: Mapping[str, Any], blob: bytes = b"", *, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Raises `SandboxError` where the sandbox has died, or does not answer within `seconds`."""
        async with self._lock:
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange(wire.encode(request, blob))
            except TimeoutError as error:
                self.close()
                raise SandboxError(f"the sandbox did not answer {request['op']!r} within {seconds:.0f} s") from error
            except (OSError, ValueError) as error:  # ValueError: what it sent is not JSON
                self.close()
                raise SandboxError(f"the sandbox died: {error}") from error

    async def finish(self) -> None:
        """Tell the sandbox to end, and wait until it has."""
        loop = asyncio.get_running_loop()
        try:
            self._socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(CLOSE_SECONDS), self._lock:  # a call under way sees the sandbox die, and returns
                while await loop.sock_recv(self._socket, 1 << 16):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        self._socket.close()

    async def _exchange(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        await self._send(data)
        self._abandoned += 1
        try:
            while self._abandoned > 1:
                await self._answer()
                self._abandoned -= 1
            answer = await self._answer()
        except asyncio.CancelledError:
            self._cancel()
            raise
        self._abandoned -= 1
        return answer

    async def _send(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except asyncio.CancelledError:
            self.close()  # half a request can't be taken back
            raise

    def _cancel(self) -> None:
        with contextlib.suppress(OSError):  # it has died, or is about to
            self._socket.send(wire.encode({"op": "cancel"}))

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        text_size, blob_size = wire.PREFIX.unpack(await self._peek(wire.PREFIX.size))
        if text_size > MAX_JSON_BYTES or blob_size > self._max_blob_bytes:
            raise ConnectionError(f"it sent {text_size} + {blob_size} bytes at once")
        start, end = wire.PREFIX.size, wire.PREFIX.size + text_size + blob_size
        data = await self._peek(end)
        answer = json.loads(data[start : start + text_size]), bytes(data[start + text_size : end])
        del self._received[:end]
        return answer

    async def _peek(self, size: int) -> bytes:
        """The next bytes, left in the buffer, so that a cancellation loses none."""
        loop = asyncio.get_running_loop()
        while len(self._received) < size:
            piece = await loop.sock_recv(self._socket, 1 << 18)
            if not piece:
                raise ConnectionError("it closed its socket")
            self._received += piece
        return bytes(self._received[:size])
