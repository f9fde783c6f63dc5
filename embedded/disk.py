"""Writing to the run directory: whole or not at all, durable, and with a clear error where the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout.records import RunDirectoryError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `RunDirectoryError` that names the path, the reason and what to do."""
    try:
        yield
    except OSError as error:
        todo = "make room there and resume" if error.errno in _FULL else "make it writable and resume"
        raise RunDirectoryError(
            f"can't write {path}: {error.strerror or error} ({_free(path)}). What was written before is whole; {todo}"
        ) from error


def write_file(path: Path, content: bytes) -> None:
    """Write and flush to disk; the name may not exist before."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` atomically and durably; a failure leaves what was there."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in the directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free(path: Path) -> str:
    there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    try:
        return f"{shutil.disk_usage(there).free >> 20} MiB free"
    except OSError:
        return "free space unknown"
