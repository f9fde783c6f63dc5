"""`bash`: any shell command."""

from __future__ import annotations

from typing import Any

from data_sources.task import Task
from rollout.sandbox.base import ExecResult, Sandbox
from rollout.tools.base import ToolResult, ToolSpec


class Bash:
    spec = ToolSpec("bash", "Run a shell command in the repository.", {"command": "The command."})

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(describe(await sandbox.exec(arguments["command"])))


def describe(result: ExecResult) -> str:
    """The command's output, then how it ended where that was not plain success."""
    lines = [result.output.rstrip("\n")] if result.output.strip() else []
    if result.timed_out:
        lines.append(f"[killed after {result.seconds:.0f} s]")
    elif result.exit_code:
        lines.append(f"[exit code {result.exit_code}]")
    return "\n".join(lines) or "[no output]"
