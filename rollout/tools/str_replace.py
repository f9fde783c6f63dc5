"""`str_replace`: replace one unique piece of a file, or write the whole file."""

from __future__ import annotations

from typing import Any

from data_sources.task import Task
from rollout.sandbox.base import Sandbox
from rollout.tools.base import ToolResult, ToolSpec


class StrReplace:
    spec = ToolSpec(
        "str_replace",
        "Replace text that occurs once in a file; without old_str, write the whole file.",
        {"path": "Relative path.", "old_str": "Text to replace.", "new_str": "Text to put there."},
        optional=frozenset({"old_str"}),
    )

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        path, old, new = arguments["path"], arguments.get("old_str"), arguments["new_str"]
        if old is None:
            await sandbox.write_file(path, (new.rstrip("\n") + "\n").encode("utf-8"))
            return ToolResult(f"Edited {path}")
        try:
            content = (await sandbox.read_file(path)).decode("utf-8")
        except (FileNotFoundError, IsADirectoryError):
            return ToolResult(f"No such file: {path}", ok=False)
        except UnicodeDecodeError:
            return ToolResult(f"{path} is not text", ok=False)
        edited, message = replace(content, path, old, new)
        if edited is None:
            return ToolResult(message, ok=False)
        await sandbox.write_file(path, edited.encode("utf-8"))
        return ToolResult(message)


def replace(content: str, path: str, old: str, new: str) -> tuple[str | None, str]:
    """The edited text and what to tell the policy; the text is None where nothing was replaced."""
    count = content.count(old) if old else 0
    if count == 1:
        if old == new:
            return None, "old_str and new_str are the same"
        return content.replace(old, new), f"Edited {path}"
    if count == 0:
        return None, f"old_str not found in {path}"
    return None, f"old_str occurs {count} times in {path}: make it longer"
