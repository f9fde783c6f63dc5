"""opencode: an agent in one program of its own, with a tool for each kind of work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, machine, npm_install
from slime_swe.rollout.agents.toy_task import BUG, FIX, PATH, TEST_COMMAND, tool_call
from slime_swe.rollout.proxy.conversation import Request

_WITHOUT = ("question", "skill", "webfetch", "websearch")  # tools that need a person, its own manual or a network
_SWITCHED_OFF = (
    "AUTOCOMPACT",
    "AUTOUPDATE",
    "CLAUDE_CODE",  # instructions and skills of another agent
    "DEFAULT_PLUGINS",
    "EMBEDDED_WEB_UI",
    "EXTERNAL_SKILLS",
    "LSP_DOWNLOAD",
    "MODELS_FETCH",
    "PROJECT_CONFIG",  # the repository's own, which could name another model
    "PRUNE",
    "SHARE",
    "TERMINAL_TITLE",
)


class Opencode(CliAgent):
    name = "opencode"
    version = "1.18.18"
    check_script = (
        f"Let me look first.\n{tool_call('read', filePath=PATH)}",
        f"It subtracts.\n{tool_call('edit', filePath=PATH, oldString=BUG, newString=FIX)}",
        tool_call("bash", command=TEST_COMMAND, description="Run the tests"),
        "The sums are right now.",
    )

    @classmethod
    def install(cls, folder: Path) -> None:
        """Install the program alone, which holds the provider for OpenAI's protocol: `opencode-ai` only finds it."""
        package = f"opencode-linux-{machine()}"
        npm_install(f"{package}@{cls.version}", folder)
        (folder / "node_modules" / package / "bin" / "opencode").rename(folder / "opencode")
        (folder / "opencode").chmod(0o755)
        shutil.rmtree(folder / "node_modules")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        limit = {"context": launch.policy.max_context, "output": launch.max_reply}
        config = {
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "permission": {"*": "allow", **dict.fromkeys(_WITHOUT, "deny")},
            "formatter": False,
            "lsp": False,
            "enabled_providers": ["proxy"],
            "provider": {
                "proxy": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": f"{launch.url}/v1", "apiKey": launch.key, "timeout": False},
                    "models": {launch.policy.model: {"name": launch.policy.model, "limit": limit}},
                }
            },
        }
        environment = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_PURE": "1",
            "NO_COLOR": "1",
            **{f"OPENCODE_DISABLE_{name}": "1" for name in _SWITCHED_OFF},
        }
        # A title, or it asks the model for one.
        fixed = f"run --auto --title task -m proxy/{launch.policy.model}"
        shell = f"{folder_of(cls.name)}/opencode {fixed} {cls.flags} <{HOME}/task.txt"
        return Command(shell, environment, {"task.txt": launch.task.statement})

    @classmethod
    def side_call(cls, request: Request) -> bool:
        """Say whether a call wants a session's title; it asks for none here, but by a person's settings it might."""
        return any("You are a title generator" in message.text[:500] for message in request.messages[:1])
