"""Claude Code: Anthropic's agent, a program of its own that speaks Anthropic messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, machine, npm_install
from slime_swe.rollout.agents.toy_task import repair
from slime_swe.rollout.episode import StopReason

_TOOLS = "Agent,Bash,Edit,Glob,Grep,Read,Write"  # none that needs a network, a person or another day
_ENDS = {"Error: Reached max turns": StopReason.MAX_TURNS, "Prompt is too long": StopReason.CONTEXT_FULL}
_SETTINGS = {"includeCoAuthoredBy": False, "cleanupPeriodDays": 1}


class ClaudeCode(CliAgent):
    name = "claude_code"
    version = "2.1.329"
    check_script = repair("Bash", description="Mend the sum")

    @classmethod
    def install(cls, folder: Path) -> None:
        """Install the program alone: the package that is named `claude-code` only finds it."""
        package = f"@anthropic-ai/claude-code-linux-{machine()}"
        npm_install(f"{package}@{cls.version}", folder)
        (folder / "node_modules" / package / "claude").rename(folder / "claude")
        shutil.rmtree(folder / "node_modules")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        environment = {
            "ANTHROPIC_BASE_URL": launch.url,
            "ANTHROPIC_API_KEY": launch.key,
            "ANTHROPIC_SMALL_FAST_MODEL": launch.policy.model,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(launch.policy.max_context),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(launch.max_reply),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_COST_WARNINGS": "1",
            "IS_SANDBOX": "1",  # root may run it without asking
        }
        fixed = f"-p --dangerously-skip-permissions --output-format text --model {launch.policy.model}"
        limit = f"--max-turns {launch.policy.max_turns} --tools {_TOOLS} --no-session-persistence"
        shell = f"{folder_of(cls.name)}/claude {fixed} {limit} {cls.flags} <{HOME}/task.txt"
        files = {"task.txt": launch.task.statement, ".claude/settings.json": json.dumps(_SETTINGS)}
        return Command(shell, environment, files)

    @classmethod
    def outcome(cls, exit_code: int | None, output: str) -> StopReason:
        said = [reason for text, reason in _ENDS.items() if text in output]
        return said[0] if said else super().outcome(exit_code, output)


class WithoutShell(ClaudeCode):
    flags = "--disallowedTools Bash"


class Bare(ClaudeCode):
    """Claude Code with its minimal first prompt."""

    flags = "--bare"
