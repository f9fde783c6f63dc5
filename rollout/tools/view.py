"""`view`: a file's text, or a folder's entries."""

from __future__ import annotations

import shlex
from typing import Any

from data_sources.task import Task
from rollout.sandbox.base import Sandbox
from rollout.tools.base import ToolResult, ToolSpec

MAX_CHARACTERS = 20_000


class View:
    spec = ToolSpec("view", "Show a file.", {"path": "Relative path."})

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        path = arguments["path"]
        try:
            content = await sandbox.read_file(path)
        except FileNotFoundError:
            return ToolResult(f"No such file: {path}", ok=False)
        except IsADirectoryError:
            listing = await sandbox.exec(f"ls -p -- {shlex.quote(path)}")
            return ToolResult(listing.output.rstrip("\n"))
        return ToolResult(render(content))


def render(content: bytes) -> str:
    """The file as the policy sees it: its text without the last newline, cut where it is too long to read at once."""
    text = content.decode("utf-8", errors="replace").rstrip("\n")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n[cut: {len(text) - MAX_CHARACTERS} more characters]"
    return text
