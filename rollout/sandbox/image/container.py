"""`Container`: what `ImageSandbox` needs of a backend: a driver to talk to, and a look at the files from outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from slime_swe.rollout.sandbox.base import Limits
from slime_swe.rollout.sandbox.image.changes import Found, Originals

HISTORY = Path(__file__).with_name("shallow_history.sh")  # leaves the repository no later history
NO_HISTORY = 3  # what it ends with where there is none
READY = b"ready\n"  # what the driver says first


class ShellDied(Exception):
    """The driver has ended or does not answer, or can't be started with the files as they now are."""


class Stream(Protocol):
    """The driver's stdin and stdout."""

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Send without waiting. What can't be sent is lost, and `read` comes to its end."""
        ...

    def close(self) -> None: ...


class Container(Protocol):
    """A container whose first process is the driver. Methods raise `SandboxError` where the backend fails."""

    @property
    def originals(self) -> Originals: ...

    async def start(self) -> Stream:
        """Start the driver, or, where it has ended, start it again on the same files.

        Raises `ShellDied` where the backend works, and yet the driver does not come up.
        """
        ...

    async def interrupt(self) -> None:
        """Send SIGUSR1 to the driver, if it lives."""
        ...

    async def kill(self) -> None:
        """End the driver and with it every process, by the system's own means."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A socket that listens on the loopback of the container's network.

        Raises `OSError` where the port is taken, `ShellDied` where the network went with the driver.
        """
        ...

    async def find_changes(self, size_before: Callable[[str], int]) -> Found:
        """Look, without the help of any program inside. `size_before` gives the bytes that a file had at the start.

        Raises `OSError` (EFBIG) where there are too many names.
        """
        ...

    async def remove(self) -> None:
        """End it and leave nothing of it. May be called at any time, and more than once."""
        ...


def driver_command(limits: Limits, folder: str, *, bounded: bool) -> list[str]:
    """The program that is to be a container's first process.

    `bounded`: whether the container's memory and processes are. If not, each process's address space is, and the number
    of processes by what the kernel counts for the user: in the container alone since Linux 5.14, and never for root.
    """
    flags = limit_flags(limits) if bounded else f"{limit_flags(limits, memory=True)} -u {limits.processes + 1}"
    script = Path(__file__).with_name("driver.sh").read_text(encoding="utf-8")
    return ["bash", "--noprofile", "--norc", "-c", script, "bash", flags, folder]


def limit_flags(limits: Limits, *, memory: bool = False) -> str:
    """Those of bash's `ulimit` for each process of a command; `memory`: its address space too."""
    flags = f"-c 0 -t {limits.cpu_seconds} -f {limits.file_bytes // 1024} -n 1024"
    return f"{flags} -v {limits.memory_bytes // 1024}" if memory else flags


async def await_ready(stream: Stream, seconds: float) -> None:
    """Raises `ShellDied` where the driver does not say that it is there."""
    said = b""
    try:
        async with asyncio.timeout(seconds):
            while len(said) < len(READY) and (piece := await stream.read()):
                said += piece
    except TimeoutError as error:
        raise ShellDied(f"the driver did not start within {seconds:.0f} s") from error
    if said != READY:
        raise ShellDied(f"the driver did not start; it printed: {said[:2000]!r}")
