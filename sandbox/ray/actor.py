"""`NodeSandboxes`: the sandboxes of one node, in a Ray actor there. What it imports is what the driver imports."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import platform
import stat
import tarfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slime_swe
from slime_swe.data_sources.task import Image
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.sandbox.base import ExecResult, Limits, Sandbox, SandboxError
from slime_swe.sandbox.cache import cache_folder, made_once
from slime_swe.sandbox.pool import SandboxPool, make_backend
from slime_swe.sandbox.ray.ports import NodePorts

_CODE = (
    "sandbox",
    "limit.py",
    "patches",
    "data_sources/task.py",
    "errors.py",
    "files.py",
)
_SUFFIXES = (".py", ".sh")


def code() -> str:
    """Return a digest of the code that a sandbox runs with, and the version of Python, of this process."""
    root, digest = Path(slime_swe.__file__).parent, hashlib.sha256()
    for name in _CODE:
        place = root / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in _SUFFIXES:
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return f"{digest.hexdigest()[:12]}, Python {platform.python_version()}"


@dataclass(frozen=True)
class Facts:
    """The facts that must be the same on all nodes: `code`, and what `Backend.fingerprint` says."""

    code: str
    confinement: tuple[str, ...]


class NodeSandboxes:
    """Holds the sandboxes of one node. backend: opens them, `most` at once, and `least` if the node bears no more. Each
    is known by a number, which the driver chooses, and so is each of its calls. Ray keeps no order of calls.
    """

    def __init__(self, backend: str, most: int, least: int, keep_free: float = 0.0) -> None:
        self._backend = backend
        self._pool = SandboxPool(backend, concurrency=most, least=least, keep_free=keep_free)
        self._held: dict[int, _Held] = {}
        self._left: set[int] = set()  # left before they were opened
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._cancelled: set[int] = set()  # before they began, or when they had ended

    async def call(self, number: int, method: str, *args: Any) -> Any:
        """Call another method and return what it returns. An error of its own is returned too: Ray's wrapping of what a
        call raises would lose an `OSError`'s fields.
        """
        if number in self._cancelled:
            self._cancelled.discard(number)
            return SandboxError("the call was cancelled before it began")
        running = self._running[number] = asyncio.create_task(getattr(self, method)(*args))
        try:
            await asyncio.wait({running})
        finally:
            running.cancel()
            del self._running[number]
        if running.cancelled():
            return SandboxError("the call was cancelled")
        error = running.exception()
        if error is not None and not isinstance(error, InfrastructureError | UserError | OSError):
            raise error
        return running.result() if error is None else error

    async def cancel(self, number: int) -> None:
        """Cancel a call: `ray.cancel` takes seconds where it is just beginning, and now and then never reaches it."""
        if number in self._running:
            self._running[number].cancel()
        else:
            self._cancelled.add(number)

    async def start(self) -> tuple[Facts, list[str]]:
        """Start the backend. Returns what this machine is like, and what the backend has warned of."""
        optional = make_backend(self._backend).isolates == "if possible"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("error" if optional else "always", RuntimeWarning)
            try:
                await self._pool.start()
            except RuntimeWarning as warning:
                raise UserError(
                    f"{warning} On other machines nobody would see it: mend it there, or set "
                    "rollout.sandbox=ray:subprocess to go without isolation"
                ) from None
        warned = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
        return await asyncio.to_thread(self._facts), warned

    async def ping(self) -> int:
        """Return how many sandboxes the node bears now; whoever is stuck does not return."""
        return self._pool.slots.look()

    async def open(
        self, number: int, files: Mapping[str, bytes], limits: Limits, image: Image | None, layers: Sequence[Path]
    ) -> None:
        if number in self._left:
            self._left.discard(number)
            raise SandboxError("the sandbox was left before it was open")
        held = self._held[number] = _Held(self._pool.open(files, limits, image, layers))
        await held.sandbox()

    async def leave(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is None:
            self._left.add(number)
        else:
            await held.leave()

    async def exec(self, number: int, command: str, timeout: float | None) -> ExecResult:
        return await (await self._find(number).sandbox()).exec(command, timeout=timeout)

    async def read_file(self, number: int, path: str) -> bytes:
        return await (await self._find(number).sandbox()).read_file(path)

    async def write_file(self, number: int, path: str, content: bytes) -> None:
        await (await self._find(number).sandbox()).write_file(path, content)

    async def diff(self, number: int) -> str:
        return await (await self._find(number).sandbox()).diff()

    async def listen(self, number: int, port: int) -> None:
        held = self._find(number)
        held.ports.add(port, await (await held.sandbox()).listen(port))

    async def port(self, number: int, method: str, *args: Any) -> Any:
        """Call a method of the sandbox's `NodePorts`."""
        return await getattr(self._find(number).ports, method)(*args)

    async def find_layer(self, folder: Path, identity: str) -> Path | None:
        return await asyncio.to_thread(find, folder, identity)

    async def add_layer(self, identity: str, packed: bytes) -> Path:
        return await asyncio.to_thread(unpack, identity, packed)

    async def close(self) -> None:
        """Leave every sandbox, and end what the backend keeps running."""
        held, self._held = list(self._held.values()), {}
        try:
            await asyncio.gather(*(one.leave() for one in held))
        finally:
            await self._pool.close()

    def _facts(self) -> Facts:
        return Facts(code(), tuple(make_backend(self._backend).fingerprint()))

    def _find(self, number: int) -> _Held:
        if number not in self._held:
            raise SandboxError("the sandbox is not open")
        return self._held[number]


# Layers on other nodes: the same folder where the node sees it too, else a copy in the node's cache, made once.
def identity(folder: Path) -> str:
    """Hash a layer's names, modes, sizes, times (to the microsecond) and links: the same on every node that sees the
    folder, and another when a file is written anew. Raises `OSError`.
    """
    digest = hashlib.sha256()
    for path in _below(folder):
        state = path.lstat()
        target = os.readlink(path) if path.is_symlink() else ""
        content = (state.st_size, state.st_mtime_ns // 1000) if stat.S_ISREG(state.st_mode) else ()
        digest.update(f"{path.relative_to(folder)}\0{state.st_mode}\0{content}\0{target}\0".encode("utf-8", "replace"))
    return digest.hexdigest()[:24]


def find(folder: Path, wanted: str) -> Path | None:
    """Return the folder in which this machine has the layer; None where it has not."""
    copy = _place(wanted)
    if copy.exists():
        return copy
    try:
        return folder if folder.is_dir() and identity(folder) == wanted else None
    except OSError:  # it is another's folder, or changes
        return None


def pack(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".")
    return packed.getvalue()


def unpack(wanted: str, packed: bytes) -> Path:
    """Return the copy in this machine's cache, made if need be. Its bytes are the driver's own, and trusted as such."""

    def fill(place: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            # Before 3.11.4 Python has no filters, and extracts as this one does.
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            tar.extractall(place)

    return made_once(_place(wanted), fill)


def _place(wanted: str) -> Path:
    return cache_folder() / "layers" / wanted


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *names]):
            yield Path(place, name)


class _Held:
    """An open sandbox: the task that enters it leaves it too, when `leave` says so."""

    def __init__(self, opening: AbstractAsyncContextManager[Sandbox]) -> None:
        self.ports = NodePorts()
        self._opened: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._keep(opening))

    async def sandbox(self) -> Sandbox:
        """Return the sandbox as soon as it is open. Raises what opening raises."""
        either: set[asyncio.Future[Any]] = {self._task, self._opened}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            if self._task.cancelled():
                raise SandboxError("the sandbox was left before it was open")
            self._task.result()
        return self._opened.result()

    async def leave(self) -> None:
        """Leave the sandbox. Raises what leaving raises; what opening has raised is known already."""
        self.ports.close()
        if self._opened.done():
            self._end.set()
        else:
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None and self._opened.done():
            raise error

    async def _keep(self, opening: AbstractAsyncContextManager[Sandbox]) -> None:
        async with opening as sandbox:
            self._opened.set_result(sandbox)
            await self._end.wait()
