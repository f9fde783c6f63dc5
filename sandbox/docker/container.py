"""`DockerSandbox`: a container whose first process is the driver, and how its streams and ports are reached."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import socket
import ssl
import tarfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.base import SandboxError, SandboxSpec
from slime_swe.sandbox.docker.client import NOT_FOUND, DockerError, call, docker_error, not_found
from slime_swe.sandbox.guest import kernel
from slime_swe.sandbox.guest.files import ReadBudget
from slime_swe.sandbox.image.driver import STREAM_BYTES, ShellDied, Stream, await_ready
from slime_swe.sandbox.image.sandbox import Found, ImageSandbox, Originals, is_tracked

START_SECONDS = 120.0
_CONFLICT = 409  # it is not running, or being removed already
_REMOVAL_PAUSES = (0.1, 0.5)  # seconds

Started = tuple[str, Stream, Originals]  # a container's id, its driver, and what its image holds


class DockerSandbox(ImageSandbox):
    """A sandbox in a container of Docker. `take` gives a started container, new or from the warm pool."""

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
        """Listen in the container's network. A driver that is started again has another: the ports before are gone."""
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


# Read what a container has changed by the daemon's own means: its list of changed paths, and its archives of files.
#
# Asking for files costs one request each. Asking for the whole repository costs one request, but transfers all its
# bytes. The cheaper way is taken; the second also where the daemon can't list what has changed, or can't tell what is
# at a path. It follows a link that it is asked for, which may lead in a circle. It follows none inside the repository.
_DELETED = 2
_DIRECTORY = 1 << 31  # of Go's os.FileMode, in which the daemon gives types
_NOT_REGULAR = 0x8F280000  # directory, symbolic link, device, named pipe, socket, character device, irregular
_BYTES_PER_REQUEST = 4 << 20  # what can be read in the time that a request takes
_MOST_REQUESTS = 16
_MOST_BYTES = 16 << 30  # of an archive, beyond the image's own files
_REPLACEMENT = "\ufffd"  # in place of what is not UTF-8: such a path can't be asked for


def find_changes(
    client: Any, container: str, folder: str, originals: Originals, size_before: Callable[[str], int]
) -> Found:
    """Find the changes below `folder`. Raises what the SDK raises; `OSError` (EFBIG) for what is too much."""
    arguments = (client, container, folder, originals, size_before)
    try:
        try:
            return _Look(*arguments).at_what_has_changed()
        except _UnreachableError:
            return _Look(*arguments).at_everything()
    except tarfile.TarError as error:
        raise OSError(errno.EFBIG, f"the daemon can't archive the files: {error}", folder) from error


class _UnreachableError(Exception):
    """The daemon works and fails all the same, because of what the container holds."""


class _Look:
    """One look at the files of one container."""

    def __init__(
        self, client: Any, container: str, folder: str, originals: Originals, size_before: Callable[[str], int]
    ) -> None:
        self._client = client
        self._container = container
        self._folder = folder
        self._originals = originals
        self._size_before = size_before
        self._budget = ReadBudget()
        self._files: dict[str, bytes | None] = {}

    def at_what_has_changed(self) -> Found:
        """Ask for the paths that the daemon lists as changed, or for everything where that is cheaper or the only way.
        Raises `_UnreachableError`.
        """
        folder, originals = self._folder, self._originals
        with self._unless_unreachable():
            listed = self._client.diff(self._container) or ()
        changed = {entry["Path"]: entry["Kind"] for entry in listed}
        above = [path for path in _and_above(folder) if path in changed]
        if any(changed[path] == _DELETED or not self._is_folder(path) for path in above):
            return self.at_everything()
        inside = {path[len(folder) + 1 :]: kind for path, kind in changed.items() if path.startswith(f"{folder}/")}
        tracked = {path: kind for path, kind in inside.items() if is_tracked(path)}
        leaves = tracked.keys() - {parent for path in inside for parent in _parents(path)}
        total = sum(map(originals.size, originals.paths()))
        few = len(leaves) <= min(_MOST_REQUESTS, max(1, total // _BYTES_PER_REQUEST))
        if few and not any(_REPLACEMENT in path for path in leaves):
            deleted = {path for path, kind in tracked.items() if kind == _DELETED}
            folders = {parent for path in tracked for parent in _parents(path)}  # which may have been files
            return self._at(sorted(leaves - deleted), deleted | (folders & originals.paths()))
        return self.at_everything()

    def _is_folder(self, path: str) -> bool:
        with self._archive(path) as (_, found):
            return found is not None and bool(found["mode"] & _DIRECTORY)

    def _at(self, paths: Iterable[str], deleted: set[str]) -> Found:
        """Ask for each of these paths."""
        hidden = set(deleted)
        for path in paths:
            self._budget.name(path)
            with self._archive(f"{self._folder}/{path}") as (pieces, found):
                if found is None or found["mode"] & _NOT_REGULAR:
                    if found is None or not found["mode"] & _DIRECTORY or path in self._originals.paths():
                        hidden.add(path)
                    continue
                with tarfile.open(fileobj=as_file(pieces), mode="r|") as tar:
                    for entry in tar:  # one
                        self._add(tar, path, entry)
        return Found(self._files, frozenset(hidden))

    def at_everything(self) -> Found:
        """Ask for the whole repository. Nothing is left of it where its folder can't be reached."""
        present: set[str] = set()
        with contextlib.suppress(_UnreachableError), self._archive(self._folder) as (pieces, found):
            if found is not None and found["mode"] & _DIRECTORY:
                with tarfile.open(fileobj=as_file(pieces), mode="r|", errors="surrogateescape") as tar:
                    for path, entry in self._tracked(tar):
                        present.add(path)
                        self._add_different(tar, path, entry)
        return Found(self._files, frozenset(self._originals.paths() - present))

    def _tracked(self, tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
        """Yield the files of the repository's archive. Raises `OSError` (EFBIG) for too many names or bytes."""
        left = _MOST_BYTES + sum(map(self._originals.size, self._originals.paths()))
        for entry in tar:
            left -= entry.size
            if left < 0:
                raise OSError(errno.EFBIG, "too many bytes", entry.name)
            path = entry.name.partition("/")[2]
            if is_tracked(path) and (entry.isreg() or entry.islnk()):
                self._budget.name(path)
                yield path, entry

    def _add_different(self, tar: tarfile.TarFile, path: str, entry: tarfile.TarInfo) -> None:
        if entry.islnk():  # the same file as one before
            other = entry.linkname.partition("/")[2]
            self._files[path] = self._files[other] if other in self._files else self._originals.read(other)
            return
        self._add(tar, path, entry)
        if self._files[path] is not None and self._files[path] == self._originals.read(path):
            del self._files[path]

    def _add(self, tar: tarfile.TarFile, path: str, entry: tarfile.TarInfo) -> None:
        before = self._size_before(path)
        self._files[path] = None
        if entry.size <= self._budget.most(before):
            file = tar.extractfile(entry)
            self._files[path] = content = file.read() if file is not None else b""
            self._budget.spend(before, len(content))

    @contextlib.contextmanager
    def _archive(self, path: str) -> Iterator[tuple[Iterable[bytes], dict[str, Any] | None]]:
        """Open the archive of a path, and yield it with the daemon's facts about the path; None for these where there
        is nothing. Raises `_UnreachableError`.
        """
        try:
            with self._unless_unreachable():
                pieces, found = self._client.get_archive(self._container, path)
        except not_found():
            yield (), None
            return
        try:
            yield pieces, found
        finally:
            pieces.close()

    @contextlib.contextmanager
    def _unless_unreachable(self) -> Iterator[None]:
        """Turn what the SDK raises into `_UnreachableError` where the daemon has the container's root folder to give.

        What the daemon says of an error proves nothing: it quotes names that were chosen inside.
        """
        try:
            yield
        except not_found():
            raise
        except docker_error() as error:
            pieces, _ = self._client.get_archive(self._container, "/")
            pieces.close()
            raise _UnreachableError(str(error)) from error


class _Reader(io.RawIOBase):
    """A file that is read from pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while (size < 0 or have < size) and (piece := next(self._pieces, b"")):
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        end = len(data) if size < 0 else size
        self._rest = data[end:]
        return data[:end]


def as_file(pieces: Iterable[bytes]) -> BinaryIO:
    return cast(BinaryIO, _Reader(pieces))


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _and_above(folder: str) -> list[str]:
    """List the folder and those that it is in, as the daemon writes them."""
    return [f"/{path}" for path in (*_parents(folder.strip("/")), folder.strip("/"))]


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
    """A stream whose output comes in pieces, each with its length before it, as the daemon sends them."""

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
    """Open a socket that listens in the container's network. `pid`: of its first process, as the daemon knows it.

    Raises `SandboxError` where that network is out of reach, `OSError` where the port can't be had.
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
    """Open the network namespace of the process, if it is the container's: elsewhere than beside the daemon its pid is
    another process's. Raises `OSError` where it is not, or can't be opened.
    """
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)  # this very one, should the pid be used again
    try:
        groups = os.open("cgroup", os.O_RDONLY, dir_fd=process)
        with open(groups, encoding="utf-8", errors="replace") as file:
            if container not in file.read():
                raise ProcessLookupError(f"process {pid} is not of the container {container[:12]}")
        return os.open("ns/net", os.O_RDONLY, dir_fd=process)
    finally:
        os.close(process)
