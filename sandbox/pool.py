"""`SandboxPool`: fresh sandboxes of one backend, a bounded number of them open at once."""

from __future__ import annotations

import abc
import asyncio
import codecs
import difflib
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slime_swe.data_sources.task import Image
from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.limit import Limit
from slime_swe.patches import bounded_patch
from slime_swe.sandbox.base import Backend, ExecResult, Limits, Sandbox, SandboxSpec

BACKENDS = {
    "local": "slime_swe.sandbox.local.LocalBackend",
    "bubblewrap": "slime_swe.sandbox.local.BubblewrapBackend",
    "subprocess": "slime_swe.sandbox.local.SubprocessBackend",
    "overlay": "slime_swe.sandbox.overlay.backend.OverlayBackend",
    "docker": "slime_swe.sandbox.docker.backend.DockerBackend",
    "apptainer": "slime_swe.sandbox.apptainer.ApptainerBackend",
    "remote": "slime_swe.sandbox.remote.RemoteBackend",
    "ray": "slime_swe.sandbox.ray.backend.RayBackend",
}


class SandboxPool:
    """Owns a backend, and belongs to one event loop; leaving it, or `close`, ends what the backend keeps running."""

    def __init__(
        self,
        backend: str = "local",
        *,
        concurrency: int = 32,
        least: int | None = None,
        limits: Limits | None = None,
        keep_free: float = 0.0,
    ) -> None:
        """`backend` is a name of `BACKENDS` or any dotted path of a callable that makes a `Backend`.

        `overlay:IMAGE` and `docker:IMAGE` say in which image tasks without one of their own run; `ray:BACKEND` opens
        the sandboxes of any of them on the nodes of a Ray cluster.

        least: with it, how many are open at once adapts to the machine, between it and `concurrency` (see `Slots`); not
        to other machines: the nodes of a Ray cluster have pools of their own.

        keep_free: GiB of the disk with the images, as `Backend.keep_free`.
        """
        if concurrency < 1:
            raise UserError(f"sandbox concurrency must be at least 1, got {concurrency}")
        if least is not None and not 1 <= least <= concurrency:
            raise UserError(f"the least sandboxes at once must be 1 to concurrency={concurrency}, got {least}")
        self._name = backend
        self._backend = make_backend(backend)
        if keep_free and not self._backend.removes_images:
            raise UserError(f"{backend} sandboxes remove no images: use {', '.join(names_that('removes_images'))}")
        self._backend.keep_free = keep_free
        self._limits = limits or Limits()
        self.slots = Slots(concurrency, least, self._backend.pressure)
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def open(
        self,
        files: Mapping[str, str | bytes],
        limits: Limits | None = None,
        image: Image | None = None,
        layers: Sequence[Path] = (),
    ) -> AsyncIterator[Sandbox]:
        """Open a fresh sandbox that starts with `files` written over the image, once there is a slot for it.

        layers: folders of this machine, each with a tree as seen from / (`opt/agents/NAME/…`). They lie over the image
        and below what the sandbox writes, shared by all sandboxes without a copy. A layer owns its first folder that
        holds anything other than one subfolder; the image must not have that folder. No layer may change while a
        sandbox uses it.
        """
        self._check(image, layers)
        content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        spec = SandboxSpec(content, limits or self._limits, image, tuple(layers))
        async with self.slots.slot():
            await self.start()
            started = time.monotonic()
            async with self._backend.open(spec) as sandbox:
                self.slots.opened(image, time.monotonic() - started)
                yield sandbox

    async def start(self) -> None:
        """Bring the backend up, as each `open` does. Raises `UserError`, `SandboxError`."""
        async with self._starting:
            await self._backend.start()

    async def close(self) -> None:
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self, image: Image | None, layers: Sequence[Path]) -> None:
        if image is not None and not self._backend.takes_images:
            raise UserError(
                f"{self._name} sandboxes run this machine's own system, and the task needs the image {image.name}: "
                f"set rollout.sandbox to one of {', '.join(names_that('takes_images'))}"
            )
        if layers and not self._backend.takes_layers:
            raise UserError(
                f"{self._name} sandboxes take no layers (asked for {layers[0]}): set rollout.sandbox to one of "
                f"{', '.join(names_that('takes_layers'))}"
            )


# `Slots`: how many sandboxes of a pool are open at once, by what the machine bears (`Concurrency`).
HIGH_CPU, HIGH_MEMORY = 0.5, 0.1  # of the time, that some process waits (`some avg10` of Linux's /proc/pressure)
SLOW, SLOW_SECONDS = 4.0, 0.25  # an opening is slow if it takes more than both: times the quickest of its kind; seconds
SECONDS = 1.0  # between two looks at the machine
_SOME = re.compile(r"some avg10=([\d.]+)")  # per cent

_log = logging.getLogger(__name__)


class Slots:
    """Gives out at most `limit` slots at once, in order of arrival.

    With `least` and `pressure` the limit adapts to the machine between `least` and `most`, by `Concurrency`; else it is
    `most`. What is open stays open when it shrinks; what wants to open waits. Those that come and wait look at the
    machine, so that nothing runs where none does. pressure: a folder with the files `cpu` and `memory` of Linux's
    /proc/pressure. Where they can't be read, as on kernels that were built or booted without, the limit is `most` too.

    Not covered: pressure is the whole machine's, whoever causes it; that of a container's own limit is not looked at.
    """

    def __init__(self, most: int, least: int | None = None, pressure: Path | None = None) -> None:
        self.limit, self.in_use = most, 0
        self._peak = 0  # most in use since the machine was looked at
        self._pressure = pressure
        self._concurrency = Concurrency(least, most) if least is not None and read_pressure(pressure) else None
        self._looked = 0.0
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it inside the context."""
        async with self._turn:
            while self.in_use >= self.look():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._concurrency is None else SECONDS):
                        await self._changed.wait()
            self.in_use += 1
            self._peak = max(self._peak, self.in_use)
        try:
            yield
        finally:
            self.in_use -= 1
            self._changed.set()

    def opened(self, kind: Hashable, seconds: float) -> None:
        """Note that the sandbox of a slot has opened: see `Concurrency.opened`."""
        if self._concurrency is not None:
            self._concurrency.opened(kind, seconds)

    def look(self) -> int:
        """Return the limit, by how the machine is now, or was less than a second ago."""
        now = time.monotonic()
        if self._concurrency is not None and now - self._looked >= SECONDS:
            self._looked = now
            found = read_pressure(self._pressure)
            if found is not None:
                self._adapt(self._concurrency, *found)
        return self.limit

    def _adapt(self, concurrency: Concurrency, cpu: float, memory: float) -> None:
        before, peak, self._peak = self.limit, self._peak, self.in_use
        self.limit = concurrency.observe(in_use=peak, cpu_pressure=cpu, memory_pressure=memory)
        if self.limit < before:
            _log.log(
                logging.WARNING if memory > HIGH_MEMORY else logging.INFO,  # busy processors are what a run wants
                "this machine bears fewer sandboxes: %d at once from now on, %d before, %d were open; some process "
                "waited %.0f %% of the last 10 s for a CPU, and %.0f %% for memory",
                *(self.limit, before, peak, 100 * cpu, 100 * memory),
            )


@dataclass
class Concurrency:
    """Adapts how many sandboxes are open at once: `most` at first, at least `least`; `limit` is a `Limit`'s.

    They are too many if memory is short, or if processors are and most sandboxes open slowly: busy processors alone are
    what a run wants, so while they are busy, it takes some that open quickly for the limit to grow.
    """

    least: int
    most: int
    _limit: Limit = field(init=False)
    _quickest: dict[Hashable, float] = field(default_factory=dict)
    _slow: list[bool] = field(default_factory=list)  # of the openings since the last observation

    def __post_init__(self) -> None:
        self._limit = Limit(self.least, self.most, self.most)

    @property
    def limit(self) -> int:
        return self._limit.limit

    def opened(self, kind: Hashable, seconds: float) -> None:
        """Note that a sandbox has opened. kind: what those have in common that open as quickly, such as an image."""
        quickest = self._quickest[kind] = min(seconds, self._quickest.get(kind, seconds))
        self._slow.append(seconds > max(SLOW_SECONDS, SLOW * quickest))

    def observe(self, *, in_use: int, cpu_pressure: float, memory_pressure: float) -> int:
        """Adapt the limit and return it. in_use: the most since the last observation. Pressures: share of the time that
        some process had to wait.
        """
        some_opened, most_slow = bool(self._slow), 2 * sum(self._slow) > len(self._slow)
        self._slow.clear()
        is_busy = cpu_pressure > HIGH_CPU
        if memory_pressure > HIGH_MEMORY or (is_busy and most_slow):
            self._limit.shrink(in_use)
        elif some_opened or not is_busy:
            self._limit.grow(in_use)
        return self.limit


def read_pressure(folder: Path | None) -> tuple[float, float] | None:
    """Read the share of the last 10 s in which some process waited for CPU and for memory; None if it is unknown."""
    if folder is None:
        return None
    try:
        cpu, memory = (_SOME.match((folder / name).read_text(encoding="ascii")) for name in ("cpu", "memory"))
    except OSError:
        return None
    return None if cpu is None or memory is None else (float(cpu[1]) / 100, float(memory[1]) / 100)


@asynccontextmanager
async def open_sandbox(
    backend: str, files: Mapping[str, str | bytes], limits: Limits | None = None
) -> AsyncIterator[Sandbox]:
    """Open one sandbox for scripts and tests, which have no pool; it pays for starting the backend."""
    async with SandboxPool(backend, concurrency=1) as pool, pool.open(files, limits) as sandbox:
        yield sandbox


def make_backend(name: str) -> Backend:
    """Make the backend of this name. Raises `UserError` for an unknown one, with those that there are."""
    kind, _, of = name.partition(":")
    maker = backend_maker(kind)
    if of and not (getattr(maker, "takes_images", False) or getattr(maker, "wraps", False)):
        raise UserError(f"sandbox {name!r}: {kind} takes no image; {', '.join(names_that('takes_images'))} do")
    backend: Backend = maker(*([of] if of else []))
    return backend


def on_one_machine(name: str) -> str:
    """Return the name of the backend whose sandboxes these are, on whatever machine: `overlay` of `ray:overlay`."""
    kind, _, of = name.partition(":")
    return of if getattr(backend_maker(kind), "wraps", False) else name


def backend_maker(kind: str) -> Any:
    """Return the class of a backend, or the function that makes one. Raises `UserError`."""
    try:
        return load_object(BACKENDS.get(kind, kind), "rollout.sandbox")
    except UserError as error:
        near = difflib.get_close_matches(kind, BACKENDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"{', '.join(BACKENDS)}, or a dotted path to a backend of your own"
        why = f": {error}" if "." in kind else ""
        raise UserError(f"unknown sandbox {kind!r}{hint} (available: {allowed}){why}") from error


def names_that(capability: str) -> list[str]:
    """List the built-in backends that have a capability of `Backend`."""
    return [name for name in BACKENDS if getattr(backend_maker(name), capability)]


# The rest is what the sandboxes of every backend do alike.
GONE = "[the sandbox's shell was killed and does not start again]\n"
KILLED = 137
_PIECE = 1 << 20  # bytes that are decoded at once: no other thread runs meanwhile
_UNKNOWN = b"\0"  # stands for a content that is not known: a patch only names what is not text


class BaseSandbox(abc.ABC):
    """A base of sandboxes that leaves what it could not enter, and gives out no port unless its backend can."""

    @abc.abstractmethod
    async def _enter(self) -> None:
        """Bring it up, with its files in place. Raises `SandboxError`."""

    @abc.abstractmethod
    async def _leave(self) -> None:
        """Leave nothing of it, whatever there is. Raises `SandboxError`."""

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._leave()

    async def listen(self, port: int) -> socket.socket:
        allowed = ", ".join(names_that("takes_layers"))
        raise UserError(f"this sandbox gives out no port (asked for {port}): set rollout.sandbox to one of {allowed}")


async def result(code: int | None, seconds: float, head: bytes, tail: bytes, missing: int) -> ExecResult:
    """Make a result. `missing` bytes of output were dropped between head and tail. Decodes a long text in a thread."""
    short = len(head) + len(tail) <= _PIECE
    output = render(head, tail, missing) if short else await asyncio.to_thread(render, head, tail, missing)
    return ExecResult(code, output, seconds, timed_out=code is None, truncated=missing > 0)


def render(head: bytes, tail: bytes, missing: int) -> str:
    """Decode the output; where `missing` bytes were dropped between head and tail, a marker says how many."""
    if not missing:
        return "".join(_decoded(head + tail, "replace"))
    marker = f"\n[truncated: {missing} bytes missing here]\n"
    return "".join((*_decoded(head, "ignore"), marker, *_decoded(tail, "ignore")))


def _decoded(data: bytes, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    for start in range(0, len(data), _PIECE):
        yield decoder.decode(data[start : start + _PIECE], final=start + _PIECE >= len(data))


async def patch(
    files: Mapping[str, bytes], oversized: Iterable[str], deleted: Iterable[str], before: Callable[[str], bytes | None]
) -> str:
    """Make the patch to `files`, the new and changed ones. `before` gives a file's content at the start, if any.

    oversized: changed files of too many bytes, which are only named. It is made in a thread, in bounded time: what a
    command has written decides how long it takes.
    """

    def make() -> str:
        after = {**files, **dict.fromkeys(oversized, _UNKNOWN)}
        found = {path: content for path in (*after, *deleted) if (content := before(path)) is not None}
        return bounded_patch(found, after)

    return await asyncio.to_thread(make)
