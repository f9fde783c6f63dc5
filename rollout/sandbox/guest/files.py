"""File operations on a sandbox's repository, carried out inside the sandbox, where no link leads out.

By file descriptors, not `open`: its layers cost a forked process hundreds of page faults, more than the work itself.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping

_READ_BYTES = 1 << 20
CACHE_FOLDERS = frozenset(
    {"__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "node_modules"}
)


def read(path: str) -> bytes:
    """A regular file's bytes. Raises `OSError`."""
    _check(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer must not block
    try:
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b""))
    finally:
        os.close(fd)


def write(files: Mapping[str, bytes]) -> None:
    """Write each file, making its parent folders. Raises `OSError`."""
    made: set[str] = set()
    for path, content in files.items():
        _check(path)
        parent = os.path.dirname(path)
        if parent and parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
        try:
            _write_all(fd, content)
        finally:
            os.close(fd)


def snapshot() -> dict[str, bytes]:
    """Every regular file below the working directory by relative path, without caches; links are not followed."""
    return {path: read(path) for path in sorted(_walk("."))}


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = entry.name if folder == "." else f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in CACHE_FOLDERS:
                    yield from _walk(path)
            elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".pyc"):
                yield path


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _check(path: str) -> None:
    if not path or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "not a path", path)
