"""The file to read first: `Sandbox`, where an agent's commands run, `Backend`, what opens them, and `Sandboxes`, which
the rest of the product asks for one.

Every backend keeps these. The tests that hold them are in tests/sandbox, and most run once for each backend:

1. A command ends with its whole process tree, and neither its working directory nor its environment outlives it. Calls
   of one sandbox wait for each other (test_commands).
2. Time, memory, file size and output of a command are limited. One that exceeds its time, or whose call is cancelled,
   is killed, and the sandbox can still be used (test_commands).
3. `diff` turns the files that the sandbox started with into its present ones, whatever commands have left there
   (test_files, test_odd_files).
4. Leaving a sandbox leaves no process and no file, also after an error, or where the task is cancelled while the
   sandbox starts or runs a command (test_lifecycle, test_commands).

A backend that isolates keeps these too:

5. No command causes a `SandboxError`: what the policy does is the policy's outcome (test_broken_from_inside).
6. A command reaches no network but the ports that `listen` has opened (test_isolation, test_ports).
7. No sandbox notices what another one locks, opens or counts up (test_channels; what is not covered is in
   docs/sandboxes.md).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from slime_swe.data_sources.task import Image
from slime_swe.errors import InfrastructureError

MAX_PORT = 65535


class SandboxError(InfrastructureError):
    """The sandbox itself failed (could not start, died, lost its connection), never the policy."""


class Sandbox(Protocol):
    """A fresh, isolated environment with the task's repository as its working directory.

    Use as an async context manager: leaving it, in whatever way, leaves no process and no file behind. Paths are
    relative to the repository. Every method raises `SandboxError` when the sandbox itself fails.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run a shell command in a forked sub-shell: its cwd and environment do not outlive it."""
        ...

    async def read_file(self, path: str) -> bytes:
        """Return the file's bytes. Raises `FileNotFoundError` or `IsADirectoryError` where that is what is wrong."""
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Write the file, making its parent folders."""
        ...

    async def diff(self) -> str:
        """Return the unified diff from the files that the sandbox started with to its present files.

        It is a patch whatever the commands did to the files: `slime_swe.patches.OVERSIZED` if it is too large.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """Return a TCP socket that listens on 127.0.0.1:`port` inside, and whose connections are accepted here.

        Commands inside reach this service and nothing else: the sandbox has no other network. `port` is 1 to 65535;
        each sandbox has its own. Any server takes the socket (`asyncio.start_server(sock=…)`, aiohttp's `SockSite`),
        and may close it. The sandbox closes open sockets at its end: close the server before. Raises `UserError` where
        the backend can't, and `OSError` (EADDRINUSE) where the port is taken inside.
        """
        ...


@dataclass(frozen=True)
class ExecResult:
    """One command's outcome. `output` is stdout and stderr as the command interleaved them."""

    exit_code: int | None  # None: killed at its time limit
    output: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False  # `output` then holds a marker that says how many bytes are missing


@dataclass(frozen=True)
class Limits:
    """The limits of one sandbox: sizes in bytes, times in seconds."""

    cpu_seconds: int = 60  # per command
    wall_seconds: float = 30.0  # per command
    memory_bytes: int = 1 << 30  # address space of each process; of an image's sandbox, what all of them use
    file_bytes: int = 64 << 20  # largest file a process may write
    disk_bytes: int = 256 << 20  # private tmpfs, where the backend has one (Docker has none)
    processes: int = 64
    output_bytes: int = 64 << 10  # kept of one command's output


@dataclass(frozen=True)
class SandboxSpec:
    """The files, limits, image and layers that one sandbox starts with. `image` is None for a task of files alone;
    `layers` are folders of this machine.
    """

    files: Mapping[str, bytes]
    limits: Limits
    image: Image | None = None
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Requirement:
    """A command that must succeed on the host.

    name: what the report calls it. install: what to do if its program is missing. fix: what to do if it fails. fatal:
    whether nothing works without it. works: the report's text if it succeeds; empty for the command's output.
    """

    name: str
    argv: tuple[str, ...]
    install: str
    fix: str = ""
    fatal: bool = False
    works: str = ""


Isolation = Literal["always", "if possible", "never"]


class Backend:
    """A backend opens sandboxes. One of your own subclasses this; nothing else has to know its name.

    A backend states what it can do here, in its class, or on itself where that depends on what it was made with: the
    pool, the doctor, the planner, the integrity gate and the agents' check ask it.
    """

    takes_images: bool = False  # runs tasks that name an image, and is chosen as `NAME:IMAGE` too
    takes_layers: bool = False  # takes layers and gives out ports: what agents that are programs need
    wraps: bool = False  # is chosen as `NAME:BACKEND`, and opens that one's sandboxes somewhere else
    isolates: Isolation = "always"
    unprotected: str = ""  # what a command can do where it does not isolate
    image_gib: float = 0.5  # an image's disk, assumed: SWE-bench Verified's 500 take 240 GiB where layers are shared
    removes_images: bool = False  # heeds `keep_free`
    keep_free: float = 0.0  # GiB of the disk with the images: below, those used longest ago are removed; 0 removes none
    shares_layers: bool = True  # images that begin with the same layers have these on the disk once
    runs_here: bool = True  # takes memory and disk of the machine that runs the episodes
    pressure: Path | None = Path("/proc/pressure")  # on this machine, as Linux tells it; None if they are on others
    requirements: tuple[Requirement, ...] = ()  # checked by `slime-swe doctor`

    async def start(self) -> None:
        """Prepare for `open`, before each; cheap if there is nothing to do. Raises `UserError`, `SandboxError`."""

    def open(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox to be entered; it has an image or layers only where the backend takes them."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop what the backend keeps running, after every sandbox was left. Raises `SandboxError`."""

    def fingerprint(self) -> Iterator[str]:
        """Yield facts about what isolates a sandbox, and about the image that tasks with files only run in.

        A result of the integrity gate is valid as long as these facts, our code and the kernel are the same.
        """
        yield from ()

    def has_image(self, name: str) -> bool:
        """Say whether this machine has the image, so that no sandbox waits for it. True where the backend keeps none.

        Blocks. Raises `UserError` or `SandboxError` where it can't tell.
        """
        return True

    def get_image(self, name: str) -> None:
        """Bring an image onto this machine, unless it is here. Blocks. Raises `UserError`, `SandboxError`."""

    def images_gib(self, names: Sequence[str]) -> float | None:
        """Return the GiB of disk that these images, all of which are here, take together; None where it can't be told.

        Blocks. Raises `UserError` or `SandboxError`.
        """
        return None

    def image_folder(self) -> Path | None:
        """Return the folder of this machine that images are kept in; None where that is elsewhere or unknown."""
        return None

    def make_image(self, name: str, add: Callable[[Path], None]) -> Image | None:
        """Make an image of this machine's packages, once under this name, and have `add` fill its /testbed.

        Returns None where the backend has no way to make one. Raises `UserError`, `SandboxError`.
        """
        return None


class Sandboxes(Protocol):
    """A `SandboxPool`, or what a test puts in its place: it opens sandboxes."""

    def open(
        self,
        files: Mapping[str, str | bytes],
        limits: Limits | None = None,
        image: Image | None = None,
        layers: Sequence[Path] = (),
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Return a fresh sandbox, to be entered, that holds `files`, written over the image and the layers."""
        ...
