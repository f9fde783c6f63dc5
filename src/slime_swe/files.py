"""Files that survive a crash: written whole or not at all, appended to, locked between processes. Files that people
name, too."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slime_swe.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FileError(UserError):
    """A file can't be written; the message names it, the reason and what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `FileError` that names the path, the reason and what to do."""
    try:
        yield
    except OSError as error:
        todo = "make room there" if error.errno in _FULL else "make it writable"
        raise FileError(
            f"can't write {path}: {error.strerror or error} ({free_space(path)}). What was written before is whole; "
            f"{todo} and resume, or choose another folder"
        ) from error


def cache_folder(name: str) -> Path:
    """Return `slime-swe/NAME` in `$XDG_CACHE_HOME` or ~/.cache; it may not exist. Raises `UserError` without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise UserError("this user has no home folder, and caches need one: set HOME or XDG_CACHE_HOME")
    return Path(base, "slime-swe", name)


def keep_in_cache(file: Path, content: bytes, what: str, again: str) -> None:
    """Write `content` to `file`, whose folder is made. Where that can't be written, print that `what` could not be
    kept, and what then happens `again`, as in "so the next run plays it again"."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)
    except OSError as error:
        print(
            f"{what} could not be kept in {file.parent} ({error.strerror}), so {again}; set XDG_CACHE_HOME to a folder "
            "that can be written",
            file=sys.stderr,
        )


def read_given(path: Path, what: str) -> bytes:
    """Read a file that a person names; `what` says what it is, such as "the task file". Raises `UserError`, also for
    devices and pipes: their end may never come."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
            return path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {what} {path}: {error.strerror or error}") from error
    raise UserError(f"can't read {what} {path}: it is a device, a pipe or a socket, and must be a regular file")


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and flush it to disk. Raises `FileExistsError` where there is one."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` atomically and durably; a failure leaves what was there. The folder must exist."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def append(path: Path, content: bytes) -> int:
    """Append all of `content` durably, or nothing of it. Returns the file's new size in bytes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # the first error says more
                os.ftruncate(descriptor, size)
            raise
        return size + len(content)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock `path` against all other processes that ask for it, until the process ends at the latest.

    Raises `BlockingIOError` where another process has it and `wait` is false. The file is made and stays.
    """
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def sync_folder(path: Path) -> None:
    """Make renames in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_space(path: Path) -> str:
    """Say for people how much is free in the file system of a path, which may not exist."""
    there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    try:
        return f"{shutil.disk_usage(there).free >> 20} MiB free"
    except OSError:
        return "free space unknown"
