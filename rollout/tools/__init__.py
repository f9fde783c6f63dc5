"""The native agent's tools, in prompt order."""

from rollout.tools.base import Tool, ToolResult, ToolSpec
from rollout.tools.bash import Bash
from rollout.tools.run_tests import RunTests
from rollout.tools.str_replace import StrReplace
from rollout.tools.submit import Submit
from rollout.tools.view import View

TOOLS: tuple[Tool, ...] = (Bash(), View(), StrReplace(), RunTests(), Submit())

__all__ = ["TOOLS", "Tool", "ToolResult", "ToolSpec"]
