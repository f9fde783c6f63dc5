"""The room that a grading has: limits, and who is the cause where a file of the grader can't be written.

A patch of a megabyte unpacks to gigabytes, and fills the disk that its sandbox may use: that is the policy's failure.
The same error comes from a host whose disk is full: that is none of the policy's. What is said inside the sandbox
tells nothing of that. So all sandboxes with the patch are left, which frees what they held, and then a fresh one
without it has to take a file.

Not covered: a disk that another sandbox has filled and freed by then (only `docker` has none of its own), and
commands that fail on a full disk, as tests may do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import ceil

from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError
from slime_swe.sandbox.base import Limits, Sandbox

_CORES = 16  # that a project's own tests may keep busy all the time
_ROOM = 4 << 20  # bytes: more than an honest patch and the files of its grader take
_FULL = (errno.ENOSPC, errno.EDQUOT)


def image_limits(seconds: float) -> Limits:
    """Return what a project's own tests may use in its image within `seconds`: far more than an agent's command may."""
    return Limits(
        cpu_seconds=ceil(seconds) * _CORES,
        memory_bytes=16 << 30,
        file_bytes=2 << 30,
        disk_bytes=8 << 30,
        processes=2048,
        output_bytes=16 << 20,
    )


class UnwrittenError(GraderError):
    """A file of the grader can't be written. size: its bytes."""

    def __init__(self, path: str, size: int, error: OSError) -> None:
        super().__init__(f"the grader's file {path} can't be written: {error}")
        self.path = path
        self.size = size


def speaks_of_a_full_disk(text: str) -> bool:
    return any(os.strerror(number) in text for number in _FULL)


async def put(sandbox: Sandbox, path: str, content: bytes) -> None:
    """Write a file of the grader. Raises `UnwrittenError`."""
    try:
        await sandbox.write_file(path, content)
    except OSError as error:
        raise UnwrittenError(path, len(content), error) from error


@asynccontextmanager
async def cause_found(patch: str, fresh: Callable[[], AbstractAsyncContextManager[Sandbox]]) -> AsyncIterator[None]:
    """Find the cause of an unwritten file, around all sandboxes with this patch, which are opened and left within.

    fresh: opens one without the patch. An `UnwrittenError` becomes a `PatchError` where the patch is the cause; a
    `PatchError` that speaks of a full disk becomes a `GraderError` where it is not. Raises `SandboxError` where no
    fresh sandbox can be had.
    """
    try:
        yield
    except UnwrittenError as error:
        if not patch:
            raise GraderError(str(error)) from error
        await _require_room(fresh, error.path, error.size, error)
        raise PatchError(f"the patch leaves no room: {error}") from error
    except PatchError as error:
        if speaks_of_a_full_disk(str(error)):
            await _require_room(fresh, ".room", 0, error)
        raise


async def _require_room(
    fresh: Callable[[], AbstractAsyncContextManager[Sandbox]], path: str, size: int, error: Exception
) -> None:
    """Raise `GraderError` where a fresh sandbox has no room either."""
    async with fresh() as sandbox:
        try:
            await sandbox.write_file(path, bytes(max(size, _ROOM)))
        except OSError as same:
            raise GraderError(f"a fresh sandbox can't take the file {path} either ({same}): {error}") from error
