"""Codex: OpenAI's agent, a program of its own that speaks OpenAI responses."""

from __future__ import annotations

import shutil
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, machine, npm_install
from slime_swe.rollout.agents.toy_task import repair

_CONFIG = """\
model = "{model}"
model_provider = "proxy"
model_context_window = {max_context}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"
project_doc_max_bytes = 0

[features]
multi_agent = false
goals = false

[analytics]
enabled = false

[history]
persistence = "none"

[model_providers.proxy]
name = "proxy"
base_url = "{url}/v1"
env_key = "CODEX_PROXY_KEY"
wire_api = "responses"
stream_idle_timeout_ms = 3600000
request_max_retries = 2
stream_max_retries = 2
"""


class Codex(CliAgent):
    name = "codex"
    version = "0.169.0"
    check_script = repair("exec_command", "cmd")

    @classmethod
    def install(cls, folder: Path) -> None:
        """Install the programs alone: the package without a platform in its version only finds them."""
        npm_install(f"@openai/codex@{cls.version}-linux-{machine()}", folder)
        (programs,) = (folder / "node_modules").glob("@openai/*/vendor/*")
        shutil.rmtree(programs / "codex-resources" / "voice", ignore_errors=True)
        programs.rename(folder / "programs")
        shutil.rmtree(folder / "node_modules")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        config = _CONFIG.format(model=launch.policy.model, url=launch.url, max_context=launch.policy.max_context)
        shell = f"{folder_of(cls.name)}/programs/bin/codex exec --skip-git-repo-check --color never - <{HOME}/task.txt"
        environment = {"CODEX_PROXY_KEY": launch.key, "NO_COLOR": "1"}
        return Command(shell, environment, {"task.txt": launch.task.statement, ".codex/config.toml": config})
