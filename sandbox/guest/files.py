"""File operations on a sandbox's repository, executed inside the sandbox, where no link leads out.

They use file descriptors, not `open`: its layers cost a forked process hundreds of page faults, more than the work
itself.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

MAX_FILE_BYTES = 4 << 20  # read at once, and what one file may grow by and still be given in full
MAX_GROWTH_BYTES = 16 << 20  # of all files that are given in full
MAX_NAME_BYTES = 8 << 20  # of all names in the repository, each with `_NAME_COST` more
_NAME_COST = 16
_READ_BYTES = 1 << 20
_FAILURES = (errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the system, or of a limit
CACHE_FOLDERS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "node_modules"})


def is_left_out(name: str, *, folder: bool) -> bool:
    """Say whether a diff holds no file, or nothing in a folder, of this name: caches, and what git takes for a
    repository's own, which is a folder, or the file of a worktree or submodule that says where that is.
    """
    return name.lower() == ".git" or (name in CACHE_FOLDERS if folder else name.endswith(".pyc"))


class ReadBudget:
    """The bytes of names and of growth that are left while the files of one repository are read."""

    def __init__(self) -> None:
        self._names = MAX_NAME_BYTES
        self._growth = MAX_GROWTH_BYTES

    def name(self, path: str) -> None:
        """Count one more name. Raises `OSError` (EFBIG) where there are too many."""
        self._names -= len(os.fsencode(path)) + _NAME_COST
        if self._names < 0:
            raise OSError(errno.EFBIG, "too many files", path)

    def most(self, size_before: int) -> int:
        """Return the size, in bytes, up to which a file is read."""
        return size_before + min(self._growth, MAX_FILE_BYTES)

    def spend(self, size_before: int, size: int) -> None:
        self._growth -= max(0, size - size_before)


class Changes(NamedTuple):
    """The files that are new or different, by path. `oversized`: changed, and too large to be given in full."""

    files: dict[str, bytes]
    oversized: list[str]
    deleted: list[str]


def read(path: str, most: int = MAX_FILE_BYTES) -> bytes:
    """Read a regular file's bytes. Raises `OSError`, EFBIG where there are more than `most`.

    A file may have holes, so that its size is bounded neither by the disk nor by what was ever written.
    """
    _check(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer must not block
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from error
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        content = read_up_to(fd, most + 1) if found.st_size <= most else None
        if content is None or len(content) > most:
            raise OSError(errno.EFBIG, f"a file of more than {most} bytes", path)
        return content
    finally:
        os.close(fd)


def write(files: Mapping[str, bytes]) -> None:
    """Write each file, making its parent folders. Raises `OSError`."""
    made: set[str] = set()
    for path, content in files.items():
        _check(path)
        parent = os.path.dirname(path)
        if parent and parent not in made:
            _make_folders(parent)
            made.add(parent)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
        try:
            if os.fstat(fd).st_dev == os.stat("/proc").st_dev:  # /proc/self would be this very process
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            _write_all(fd, content)
        finally:
            os.close(fd)


def changes(initial: Mapping[str, bytes]) -> Changes:
    """Find how the regular files below the working directory differ from `initial`; caches, links and what is git's are
    left out.

    Where permissions are in the way they are widened: these are the sandbox's own files, and a patch holds no modes.
    What can still not be read counts as unchanged. Raises `OSError` (EFBIG) where there are too many names.
    """
    budget = ReadBudget()
    paths, unlisted = _walk(budget)
    result = Changes({}, [], [])
    for path in sorted(paths):
        before = initial.get(path, b"")
        try:
            content = _read_readable(path, budget.most(len(before)))
        except OSError as error:
            if error.errno == errno.EFBIG:
                result.oversized.append(path)
            elif not _is_out_of_reach(error):
                raise
            continue
        if initial.get(path) != content:
            result.files[path] = content
            budget.spend(len(before), len(content))
    result.deleted.extend(path for path in initial if path not in paths and not path.startswith(unlisted))
    return result


def _walk(budget: ReadBudget) -> tuple[set[str], tuple[str, ...]]:
    """Find the regular files; and of each folder that can't be listed what the paths below it begin with."""
    paths: set[str] = set()
    unlisted: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            for entry in _entries(folder):
                path = folder + entry.name
                budget.name(path)
                if entry.is_dir(follow_symlinks=False):
                    if not is_left_out(entry.name, folder=True):
                        waiting.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False) and not is_left_out(entry.name, folder=False):
                    paths.add(path)
        except FileNotFoundError:  # gone, as the working directory may be: so is all that was below
            continue
        except OSError as error:
            if not _is_out_of_reach(error):
                raise
            unlisted.append(folder)
    return paths, tuple(unlisted)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    if not os.access(folder or ".", os.R_OK | os.X_OK):
        os.chmod(folder or os.getcwd(), stat.S_IRWXU)  # by its full path: a closed folder has not even a "."
    with os.scandir(folder or ".") as entries:
        yield from entries


def _read_readable(path: str, most: int) -> bytes:
    try:
        return read(path, most)
    except PermissionError:
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        return read(path, most)


def _is_out_of_reach(error: OSError) -> bool:
    """Say whether this is what a command can do to a path, rather than a failure of the system."""
    return error.errno not in _FAILURES


def read_up_to(fd: int, size: int) -> bytes:
    data = bytearray()
    while piece := os.read(fd, min(_READ_BYTES, size - len(data))):
        data += piece
    return bytes(data)


def _make_folders(folder: str) -> None:
    """Make a folder and its parents, without the recursion of `os.makedirs`, which ends at a thousand levels."""
    missing = [folder]
    while (parent := os.path.dirname(missing[-1])) and not os.path.isdir(parent):
        missing.append(parent)
    for path in reversed(missing):
        os.makedirs(path, exist_ok=True)


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _check(path: str) -> None:
    if not path or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "not a path", path)
