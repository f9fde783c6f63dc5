"""Read what a container has changed by the daemon's own means: its list of changed paths, and its archives of files.

Asking for files costs one request each. Asking for the whole repository costs one request, but transfers all its bytes.
The cheaper way is taken; the second also where the daemon can't list what has changed, or can't tell what is at a path.
It follows a link that it is asked for, which may lead in a circle. It follows none inside the repository.
"""

from __future__ import annotations

import contextlib
import errno
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

from slime_swe.rollout.sandbox.docker.client import docker_error, not_found
from slime_swe.rollout.sandbox.guest.files import ReadBudget
from slime_swe.rollout.sandbox.image.changes import Found, Originals, is_tracked

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
    """The changes below `folder`. Raises what the SDK raises; `OSError` (EFBIG) for what is too much."""
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
    """At one container, once."""

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
        """Raises `_UnreachableError`."""
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
        """The files of the repository's archive. Raises `OSError` (EFBIG) where there are too many names or bytes."""
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
        """The archive of a path, and what it is; None where there is nothing. Raises `_UnreachableError`."""
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
    """A file to read from pieces of bytes."""

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
    """The folder and those that it is in, as the daemon writes them."""
    return [f"/{path}" for path in (*_parents(folder.strip("/")), folder.strip("/"))]
