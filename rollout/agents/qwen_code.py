"""Qwen Code: Alibaba's agent for Qwen3-Coder, in Node.js."""

from __future__ import annotations

import json
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, node_install, npm_install
from slime_swe.rollout.agents.toy_task import BUG, FIX, PATH, TEST_COMMAND, tool_call
from slime_swe.rollout.episode import StopReason

MAX_TURNS_CODE = 53  # its exit code at its own limit
_OFFLINE = ("web_fetch", "web_search")  # tools that lead nowhere without a network
_SETTINGS = {
    "general": {"enableAutoUpdate": False, "checkpointing": {"enabled": False}, "gitCoAuthor": {"commit": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    "ui": {"enableFollowupSuggestions": False},
}


class QwenCode(CliAgent):
    name = "qwen_code"
    version = "0.24.4"
    check_script = (
        f"Let me look first.\n{tool_call('read_file', file_path=PATH)}",
        f"It subtracts.\n{tool_call('edit', file_path=PATH, old_string=BUG, new_string=FIX)}",
        tool_call("run_shell_command", command=TEST_COMMAND, is_background=False),
        "The sums are right now.",
    )

    @classmethod
    def install(cls, folder: Path) -> None:
        node_install(folder)
        npm_install(f"@qwen-code/qwen-code@{cls.version}", folder)
        for program in folder.glob("node_modules/@qwen-code/qwen-code/vendor/ripgrep/*/rg"):
            program.chmod(0o755)  # as its install script does

    @classmethod
    def start(cls, launch: Launch) -> Command:
        environment = {
            "OPENAI_BASE_URL": f"{launch.url}/v1",
            "OPENAI_API_KEY": launch.key,
            "OPENAI_MODEL": launch.policy.model,
            "QWEN_CODE_MAX_OUTPUT_TOKENS": str(launch.max_reply),
            "QWEN_CODE_API_TIMEOUT_MS": "0",  # the proxy's client has a limit
            "QWEN_USAGE_STATISTICS_ENABLED": "0",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            "NO_COLOR": "1",
        }
        folder = folder_of(cls.name)
        program = f"{folder}/bin/node {folder}/node_modules/@qwen-code/qwen-code/cli.js"
        excluded = " ".join(f"--exclude-tools {tool}" for tool in _OFFLINE)
        limit = f"--max-session-turns {launch.policy.max_turns}"
        shell = f"{program} --yolo --auth-type openai {limit} {excluded} {cls.flags} <{HOME}/task.txt"
        files = {"task.txt": launch.task.statement, ".qwen/settings.json": json.dumps(_SETTINGS)}
        return Command(shell, environment, files)

    @classmethod
    def outcome(cls, exit_code: int | None, output: str) -> StopReason:
        return StopReason.MAX_TURNS if exit_code == MAX_TURNS_CODE else super().outcome(exit_code, output)


class WithoutShell(QwenCode):
    flags = "--exclude-tools run_shell_command"


class Bare(QwenCode):
    """Qwen Code with its minimal first prompt."""

    flags = "--bare"
