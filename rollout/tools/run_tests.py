"""`run_tests`: the repository's own tests, as they are in the agent's sandbox."""

from __future__ import annotations

from typing import Any

from data_sources.task import Task
from rollout.sandbox.base import Sandbox
from rollout.tools.base import ToolResult, ToolSpec
from rollout.tools.bash import describe

MAX_CHARACTERS = 8_000


class RunTests:
    spec = ToolSpec("run_tests", "Run the tests.")

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        if not task.oracle.command:
            return ToolResult("No test command is known here: use bash.", ok=False)
        result = await sandbox.exec(task.oracle.command, timeout=task.oracle.timeout_seconds)
        return ToolResult(render(describe(result)))


def render(output: str) -> str:
    """The runner's output without its PASSED lines; of a long one, the end, where the summary is."""
    text = "\n".join(line for line in output.splitlines() if not line.startswith("PASSED "))
    return text if len(text) <= MAX_CHARACTERS else f"[cut]\n{text[-MAX_CHARACTERS:]}"
