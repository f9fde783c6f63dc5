"""The driver, a container's first process (`driver.sh` has the protocol), and `Shell`, the host's end of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from slime_swe.sandbox.base import Limits
from slime_swe.sandbox.guest.wire import CappedOutput

READY = b"ready\n"  # what the driver says first
STREAM_BYTES = 1 << 20  # read at once
BLOCK_BYTES = 10240  # what a `feed`'s input is a multiple of, as a tar file is
INTERRUPT_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0)  # how long each signal has to be answered
_MAX_END_BYTES = 32

Kind = Literal["run", "feed", "setup"]


class ShellDied(Exception):
    """The driver has ended or does not answer, or can't be started with the files as they now are."""


class Stream:
    """The driver's stdin and stdout. `others`: what is to be closed with them."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        sink: asyncio.StreamWriter | asyncio.WriteTransport,
        *others: asyncio.BaseTransport,
    ) -> None:
        self._reader = reader
        self._sink = sink
        self._others = others

    async def read(self) -> bytes:
        """Read the next bytes; none at the end."""
        return await self._reader.read(STREAM_BYTES)

    def write(self, data: bytes) -> None:
        """Send without waiting. What can't be sent is lost, and `read` comes to its end."""
        if not self._sink.is_closing():
            self._sink.write(data)

    def close(self) -> None:
        for end in (self._sink, *self._others):
            end.close()


def driver_command(limits: Limits, folder: str, *, bounded: bool) -> list[str]:
    """Return the command that is to be a container's first process.

    `bounded`: whether the container's memory and processes are limited. If not, each process's address space is, and
    the number of processes by what the kernel counts for the user: in the container alone since Linux 5.14, and never
    for root.
    """
    flags = limit_flags(limits) if bounded else f"{limit_flags(limits, memory=True)} -u {limits.processes + 1}"
    script = Path(__file__).with_name("driver.sh").read_text(encoding="utf-8")
    return ["bash", "--noprofile", "--norc", "-c", script, "bash", flags, folder]


def limit_flags(limits: Limits, *, memory: bool = False) -> str:
    """Return the flags of bash's `ulimit` for each process of a command; `memory`: its address space is limited too."""
    flags = f"-c 0 -t {limits.cpu_seconds} -f {limits.file_bytes // 1024}"
    return f"{flags} -v {limits.memory_bytes // 1024}" if memory else flags


async def await_ready(stream: Stream, seconds: float) -> None:
    """Wait until the driver says that it is there. Raises `ShellDied` where it does not within `seconds`."""
    said = b""
    try:
        async with asyncio.timeout(seconds):
            while len(said) < len(READY) and (piece := await stream.read()):
                said += piece
    except TimeoutError as error:
        raise ShellDied(f"the driver did not start within {seconds:.0f} s") from error
    if said != READY:
        raise ShellDied(f"the driver did not start; it printed: {said[:2000]!r}")


class Shell:
    """Runs one command at a time; calls must not overlap. After `ShellDied` it can't be used again."""

    def __init__(self, stream: Stream, interrupt: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._interrupt = interrupt
        self._received = bytearray()
        self._stopping: asyncio.Task[None] | None = None  # a command that is being killed
        self._closed = False
        self.started = False  # whether the driver has begun the latest command

    async def run(
        self, command: bytes, output: CappedOutput, seconds: float, *, kind: Kind = "run", stdin: bytes = b""
    ) -> int | None:
        """Run a command (no NUL bytes), and return its exit status; None where it was killed at its time limit.

        The status is 137 where it was killed by a signal of its own to the driver. A cancelled call kills its command,
        in the background; the next call waits for that. Raises `ShellDied`.
        """
        self.started = False
        await self.settled()
        answer = asyncio.ensure_future(self._exchange(command, output, kind, stdin))
        answer.add_done_callback(retrieve)
        try:
            await asyncio.wait({answer}, timeout=seconds)
        finally:
            if not answer.done():
                self._stopping = asyncio.ensure_future(self._stop(answer))
                self._stopping.add_done_callback(retrieve)
        if self._stopping is not None:
            await self.settled()
            return None
        code, killed = answer.result()
        return 137 if killed else code

    async def close(self) -> None:
        """Wait for no command: the container is to be killed."""
        self._closed = True
        if self._stopping is not None:
            self._stopping.cancel()
            await asyncio.gather(self._stopping, return_exceptions=True)
        self._stream.close()

    async def settled(self) -> None:
        """Wait until a command whose call was cancelled is dead. Raises `ShellDied`."""
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
            self._stopping = None

    async def _stop(self, answer: asyncio.Future[tuple[int, bool]]) -> None:
        """Kill the running command and wait until it has ended. The signal is repeated, since one that comes before the
        command has no effect.
        """
        try:
            for seconds in INTERRUPT_SECONDS:
                if not self._closed:
                    await self._interrupt()
                if (await asyncio.wait({answer}, timeout=seconds))[0]:
                    break
            else:
                raise ShellDied("the driver does not answer")
            answer.result()
            async with asyncio.timeout(sum(INTERRUPT_SECONDS)):
                await self._exchange(b"", CappedOutput(0))  # a signal that came too late hits nothing but this
        except TimeoutError as error:
            raise ShellDied("the driver does not answer") from error
        finally:
            answer.cancel()

    async def _exchange(
        self, command: bytes, output: CappedOutput, kind: Kind = "run", stdin: bytes = b""
    ) -> tuple[int, bool]:
        """Send a command and collect its output. Returns its exit status, and whether the host had it killed."""
        token = secrets.token_hex(16).encode()
        padding = -len(stdin) % BLOCK_BYTES
        blocks = (len(stdin) + padding) // BLOCK_BYTES
        header = b"%s %s %d %d\n" % (token, kind.encode(), len(command), blocks)
        self._stream.write(header + command + stdin + b"\0" * padding)
        await self._receive_until(token + b":start\n", CappedOutput(0))  # whatever an earlier command still printed
        self.started = True
        await self._receive_until(token + b":end ", output)
        return await self._end()

    async def _receive_until(self, marker: bytes, output: CappedOutput) -> None:
        while (at := self._received.find(marker)) < 0:
            sure = len(self._received) - len(marker) + 1  # after these, the marker may have begun
            if sure > 0:
                output.add(bytes(self._received[:sure]))
                del self._received[:sure]
            await self._receive()
        output.add(bytes(self._received[:at]))
        del self._received[: at + len(marker)]

    async def _end(self) -> tuple[int, bool]:
        while b"\n" not in self._received[:_MAX_END_BYTES]:
            if len(self._received) >= _MAX_END_BYTES:
                raise ShellDied("the driver's answer was forged")
            await self._receive()
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        try:
            code, killed = map(int, line.split(b" "))
        except ValueError as error:
            raise ShellDied("the driver's answer was forged") from error
        return code, killed != 0

    async def _receive(self) -> None:
        piece = await self._stream.read()
        if not piece:
            raise ShellDied("the driver has died")
        self._received += piece


def retrieve(ended: asyncio.Future[Any]) -> None:
    """Retrieve a future's error: it is raised where the future is awaited, and that nobody does is no error."""
    if not ended.cancelled():
        ended.exception()
