"""Apply a patch to the repository of an image, for graders whose command runs there.

Python reads and applies the patch; in the sandbox are only the means to list, read, write and remove files. As git
does, it changes nothing that is a link or behind one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import PurePosixPath

from slime_swe.data_sources.task import Task
from slime_swe.patches import PatchError, paths_of
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.guard import Files, folders_of, graded_files
from slime_swe.rollout.sandbox.base import Sandbox
from slime_swe.rollout.sandbox.many_files import null_terminated, read_many, write_many

_LIST_FILES = "find . -name .git -prune -o \\( -type f -o -type l \\) -printf '%y%P\\0'"
_LINK = "l"  # what `find` calls it
_REMOVED = "/tmp/.removed"  # the paths of files to remove
_REMOVE = f"xargs -0 -r rm -f -- <{_REMOVED}"
_REMOVE_FOLDERS = f"xargs -0 -r rmdir -p --ignore-fail-on-non-empty -- <{_REMOVED} 2>/dev/null; true"


async def patch_image(sandbox: Sandbox, task: Task, patch: str) -> list[str]:
    """Apply it to the image's repository, with the task's files over it. Returns the paths at which it is ignored.

    Raises `PatchError`, and `GraderError` where the repository can't be listed.
    """
    files, links = await _listed(sandbox)
    paths = await asyncio.to_thread(paths_of, patch)
    if linked := [path for path in paths if not links.isdisjoint({path, *folders_of(path)})]:
        raise PatchError(f"{linked[0]} is a link of the repository, or behind one")
    try:
        named = await read_many(sandbox, [path for path in paths if path in files])
    except OSError as error:
        raise PatchError(f"a file that the patch names can't be read: {error}") from error
    pristine: Files = {**named, **task.workspace.files}
    patched, ignored = await graded_files(task, patch, pristine, files)
    await _write_changes(sandbox, pristine, patched)
    return ignored


async def _listed(sandbox: Sandbox) -> tuple[frozenset[str], frozenset[str]]:
    """Every file and every link of the repository."""
    result = await sandbox.exec(_LIST_FILES)
    if result.exit_code != 0 or result.truncated:
        raise GraderError(f"the image's files can't be listed: {result.output[-500:]!r}")
    entries = list(filter(None, result.output.split("\0")))
    links = frozenset(entry[1:] for entry in entries if entry[0] == _LINK)
    return frozenset(entry[1:] for entry in entries) - links, links


async def _write_changes(sandbox: Sandbox, before: Files, after: Files) -> None:
    """Make of the files `before`, which the sandbox has, those `after`."""
    deleted = [path for path in before if path not in after]
    try:
        if deleted:
            await _remove(sandbox, deleted)
        changed = {path: content for path, content in after.items() if before.get(path) != content}
        await write_many(sandbox, {path: _in_bytes(content) for path, content in changed.items()})
    except OSError as error:
        raise PatchError(f"a file of the patch can't be written: {error}") from error


async def _remove(sandbox: Sandbox, paths: Iterable[str]) -> None:
    """The files, and the folders that they leave empty, so that a file can be there."""
    await sandbox.write_file(_REMOVED, null_terminated(paths))
    removed = await sandbox.exec(_REMOVE)
    if removed.exit_code != 0:
        raise PatchError(f"a file of the patch can't be removed: {removed.output[-500:]!r}")
    folders = {str(PurePosixPath(path).parent) for path in paths} - {"."}
    await sandbox.write_file(_REMOVED, null_terminated(sorted(folders)))
    await sandbox.exec(_REMOVE_FOLDERS)


def _in_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
