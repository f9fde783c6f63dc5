"""The answer of a task that asks for one file and not for a repaired repository: what the patch leaves there."""

from __future__ import annotations

import asyncio

from slime_swe.data_sources.task import Task
from slime_swe.patches import apply_patch


async def answer_in(task: Task, patch: str, path: str) -> str | None:
    """The file's text; None where there is no such file, or it is no UTF-8. An empty patch changes nothing.

    The workspace has no image: its files are all there is. Raises `PatchError`.
    """
    files = await asyncio.to_thread(apply_patch, task.workspace.files, patch)
    try:
        return files[path].decode() if path in files else None
    except UnicodeDecodeError:
        return None
