"""The `local` backend: sandboxes of this machine's own system, each forked from a `ForkServer`.

With bubblewrap the supervisor (`sandbox.guest.supervisor`) lives in its own user, mount, pid, network, IPC and
UTS namespaces, sees a read-only system and nothing of the host's files but /usr and the Python installation, and holds
its capabilities inside its user namespace only. Every sandbox is a fork that unshares again and drops them all.
Without bubblewrap the same supervisor is an ordinary process: see `UNPROTECTED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import json
import posixpath
import shutil
import socket
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec

from slime_swe.patches import OVERSIZED
from slime_swe.sandbox import bubblewrap, pool
from slime_swe.sandbox.base import Backend, ExecResult, Isolation, Limits, Requirement, SandboxError, SandboxSpec
from slime_swe.sandbox.bubblewrap import BUBBLEWRAP, GUEST_SECONDS, ForkServerError, GuestProcess, confinement
from slime_swe.sandbox.guest import wire
from slime_swe.sandbox.guest.confinement import REPOSITORY
from slime_swe.sandbox.guest.python_fork import MAX_SCRIPTS, parse

MAX_JSON_BYTES = 64 << 20
CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # for the sandbox to answer, beyond the time that a command may take
RUNS_TO_COMPILE = 3
MAX_SCRIPT_BYTES = 10_000  # six times as much, at the worst, in the one packet that the supervisor reads
UNPROTECTED = (
    "commands can reach the network, read the host's files, write what this user may write, see and signal this "
    "user's other processes, start any number of processes and fill the disk; only time, memory, file size and "
    "output are limited"
)


class LocalBackend(Backend):
    """Opens sandboxes from one fork server, which it starts when first needed and again if it dies.

    Uses bubblewrap if it works. Else it warns, once, of what is then unprotected.
    """

    isolates: Isolation = "if possible"
    unprotected = UNPROTECTED
    requirements: tuple[Requirement, ...] = BUBBLEWRAP
    contained: ClassVar[bool | None] = None  # True: bubblewrap or an error; False: plain processes

    def __init__(self) -> None:
        self._contained = self.contained
        self._server: ForkServer | None = None

    async def start(self) -> None:
        """Bring up the fork server unless it is up."""
        if self._server is not None and self._server.alive:
            return
        await self.close()
        try:
            self._server = await asyncio.to_thread(ForkServer, contained=self._contained is not False)
        except ForkServerError as error:
            if self._contained is not None:
                raise
            warnings.warn(f"no bubblewrap sandbox here, so {UNPROTECTED}. {error}", RuntimeWarning, stacklevel=2)
            self._server = await asyncio.to_thread(ForkServer, contained=False)
        self._contained = self._server.contained  # should it fail later, that is no reason to go on unprotected

    def open(self, spec: SandboxSpec) -> LocalSandbox:
        """Return a sandbox to be entered. Raises `SandboxError` before `start`."""
        if self._server is None:
            raise SandboxError("the sandbox backend has not been started")
        return LocalSandbox(self._server, spec)

    async def close(self) -> None:
        """End the fork server, and with it every sandbox."""
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.close)

    def fingerprint(self) -> Iterator[str]:
        yield from confinement()


class BubblewrapBackend(LocalBackend):
    """A `LocalBackend` whose `start` raises `ForkServerError` where bubblewrap does not work."""

    contained = True
    isolates = "always"


class SubprocessBackend(LocalBackend):
    """A `LocalBackend` of plain processes in temporary folders: see `UNPROTECTED`."""

    contained = False
    isolates = "never"
    requirements = ()


class ForkServer(GuestProcess):
    """Owns the supervisor process; every sandbox of it dies with it."""

    def __init__(self, *, contained: bool) -> None:
        self.contained = contained
        self._folder = "" if contained else tempfile.mkdtemp(prefix="slime-swe-")
        self._runs: Counter[tuple[str, bytes]] = Counter()
        self._numbers = itertools.count(1)
        plain = partial(bubblewrap.start_plain, folder=self._folder)
        super().__init__(bubblewrap.start_contained if contained else plain)

    def spawn(self, limits: Limits) -> tuple[int, socket.socket]:
        """Ask for a sandbox. Returns its number and the non-blocking socket of its answers. Raises `SandboxError`."""
        number = next(self._numbers)
        return number, self._ask({"number": number, "limits": dataclasses.asdict(limits)})

    async def kill(self, number: int) -> None:
        """End a sandbox, whatever it has become. Raises `SandboxError` where the fork server does not do it."""
        with self._ask({"kill": number}) as answer:
            try:
                async with asyncio.timeout(GUEST_SECONDS):
                    done = await asyncio.get_running_loop().sock_recv(answer, 64)
            except (OSError, TimeoutError) as error:
                raise SandboxError(f"the fork server does not answer: {error}; {self._printed()}") from error
        if not done:
            raise SandboxError(f"the fork server has died; {self._printed()}")

    def _ask(self, request: Mapping[str, Any]) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise SandboxError(f"the fork server does not answer: {error}; {self._printed()}") from error
        return ours

    def note_run(self, path: str, source: bytes) -> None:
        """Note that a sandbox is about to run this script as given. Scripts that many run are compiled once for all."""
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


class LocalSandbox(pool.BaseSandbox):
    """One sandbox, made by `LocalBackend.open`; entering it starts it, with its files in place.

    If a file operation fails because of what the agent did (no such file, disk full, a folder in the way), it raises
    the `OSError` that occurred inside the sandbox. A cancelled call kills its command and leaves the sandbox usable.
    Paths are relative to the repository's folder; an absolute path is one of the sandbox's own system.

    Its files are in the memory of its first process. Where a command has made that one end, or fall silent, while the
    fork server answers, the command counts as killed (137), and so does every later one; the files are lost.
    """

    def __init__(self, server: ForkServer, spec: SandboxSpec) -> None:
        self._server = server
        self._limits = spec.limits
        self._files = spec.files
        self._number = 0
        self._channel: Channel | None = None
        self._is_gone = False

    async def _enter(self) -> None:
        self._number, sock = self._server.spawn(self._limits)
        self._channel = Channel(sock, 4 * self._limits.disk_bytes + (1 << 20))
        try:
            await self._call({"op": "start"}, self._files)
        except SandboxGone as error:
            raise SandboxError(f"the sandbox died before it was used: {error}") from error
        except OSError as error:
            raise SandboxError(f"the sandbox could not write its files: {error}") from error

    async def _leave(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.finish()

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run a command for at most `timeout` seconds, the limits' `wall_seconds` where that is None."""
        seconds = self._limits.wall_seconds if timeout is None else timeout
        simple = parse(command)
        if simple is not None and simple.program in self._files:
            self._server.note_run(simple.program, self._files[simple.program])
        started = time.monotonic()
        try:
            answer, blob = await self._call({"op": "exec", "command": command, "seconds": seconds}, seconds=seconds)
        except SandboxGone:
            return ExecResult(pool.KILLED, pool.GONE, time.monotonic() - started)
        except OSError as error:  # the first process has been kept from forking
            return ExecResult(pool.KILLED, f"[the command was not started: {error}]\n", time.monotonic() - started)
        head, tail = blob[: answer.head], blob[answer.head :]
        return await pool.result(answer.exit_code, answer.seconds, head, tail, answer.missing)

    async def read_file(self, path: str) -> bytes:
        return (await self._file_operation({"op": "read", "path": path}, path))[1]

    async def write_file(self, path: str, content: bytes) -> None:
        await self._file_operation({"op": "write"}, path, {path: content})

    async def diff(self) -> str:
        try:
            answer, blob = await self._call({"op": "changes"})
            files = _unpacked(answer, blob)
        except SandboxGone:
            return ""
        except OSError as error:
            return OVERSIZED if error.errno == errno.EFBIG else ""
        return await pool.patch(files, answer.oversized, answer.deleted, self._files.get)

    async def _file_operation(
        self, request: dict[str, Any], path: str, files: Mapping[str, bytes] | None = None
    ) -> tuple[Answer, bytes]:
        try:
            return await self._call(request, files)
        except SandboxGone as error:
            raise OSError(errno.EIO, "the sandbox was killed from inside", path) from error

    async def _call(
        self, request: dict[str, Any], files: Mapping[str, bytes] | None = None, *, seconds: float = 0.0
    ) -> tuple[Answer, bytes]:
        """Ask the sandbox. Raises `SandboxGone` where only it does not answer, `SandboxError` where more than that
        fails, and the `OSError` that occurred inside.
        """
        if self._channel is None:
            raise SandboxError("the sandbox is not open")
        if self._is_gone:
            raise SandboxGone
        blob = b""
        if files is not None:
            request["files"], blob = wire.pack_files(files.items())
        try:
            answer, data = await self._channel.call(request, blob, seconds=seconds + ANSWER_SECONDS)
        except SandboxGone as error:
            if self._channel is None:
                raise SandboxError("the sandbox was left while a command ran") from error
            await self._server.kill(self._number)
            self._is_gone = True
            self._channel.close()
            raise
        if answer.failed is not None:
            raise SandboxError(f"the sandbox could not start: {answer.failed}")
        if answer.error is not None:
            raise OSError(answer.errno or errno.EIO, answer.error, answer.path)
        return answer, data


def _unpacked(answer: Answer, blob: bytes) -> dict[str, bytes]:
    """Unpack the files of an answer. Raises `SandboxGone` for what no first process of ours would send."""
    try:
        return wire.unpack_files(answer.files, blob)
    except ValueError as error:
        raise SandboxGone(str(error)) from error


class SandboxGone(Exception):
    """A sandbox's first process has ended, does not answer, or answers what it never would."""


class Answer(msgspec.Struct):
    """A sandbox's answer to a request. `failed`: it could not start. `errno`, `error` and `path`: of an `OSError`."""

    failed: str | None = None
    errno: int | None = None
    error: str | None = None
    path: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    head: int = 0  # bytes of the output's head; its tail follows
    missing: int = 0  # bytes of output that were dropped between
    files: list[tuple[str, int]] = []
    oversized: list[str] = []
    deleted: list[str] = []


class Channel:
    """Carries requests and answers, one at a time. A cancelled request leaves it usable: its answer is skipped."""

    def __init__(self, sock: socket.socket, max_blob_bytes: int) -> None:
        self._socket = sock
        self._max_blob_bytes = max_blob_bytes
        self._lock = asyncio.Lock()
        self._received = bytearray()
        self._abandoned = 0  # answers to come that nobody waits for

    async def call(self, request: Mapping[str, Any], blob: bytes = b"", *, seconds: float) -> tuple[Answer, bytes]:
        """Send a request and return its answer. Raises `SandboxGone` where the sandbox has died, or does not answer
        within `seconds`; `SandboxError` where this process has cut the channel.
        """
        async with self._lock:
            if self._socket.fileno() < 0:
                raise SandboxError("a request was cancelled half-way, and the sandbox can't be used any more")
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange(wire.encode(request, blob))
            except TimeoutError as error:
                raise SandboxGone(f"it did not answer {request['op']!r} within {seconds:.0f} s") from error
            except (OSError, ValueError, RecursionError) as error:  # ValueError: what it sent is no `Answer`
                raise SandboxGone(str(error)) from error

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

    async def _exchange(self, data: bytes) -> tuple[Answer, bytes]:
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

    async def _answer(self) -> tuple[Answer, bytes]:
        text_size, blob_size = wire.PREFIX.unpack(await self._peek(wire.PREFIX.size))
        if text_size > MAX_JSON_BYTES or blob_size > self._max_blob_bytes:
            raise ConnectionError(f"it sent {text_size} + {blob_size} bytes at once")
        start, end = wire.PREFIX.size, wire.PREFIX.size + text_size + blob_size
        data = await self._peek(end)
        answer = msgspec.convert(json.loads(data[start : start + text_size]), Answer)
        del self._received[:end]
        return answer, bytes(data[start + text_size : end])

    async def _peek(self, size: int) -> bytes:
        """Return the next bytes and leave them in the buffer, so that a cancellation loses none."""
        loop = asyncio.get_running_loop()
        while len(self._received) < size:
            piece = await loop.sock_recv(self._socket, 1 << 18)
            if not piece:
                raise ConnectionError("it closed its socket")
            self._received += piece
        return bytes(self._received[:size])
