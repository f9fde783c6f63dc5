"""OpenHands: an agent in Python 3.12, which its layer brings."""

from __future__ import annotations

import json
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, pip_install
from slime_swe.rollout.agents.own_python import copy_python, own_python_command
from slime_swe.rollout.agents.toy_task import repair

PYTHON = "3.12"  # it takes no other

# Its own command. What it starts gets the image's library path.
_RUN = """\
import os
import sys

os.environ["LD_LIBRARY_PATH"] = os.environ.pop("IMAGE_LIBRARY_PATH")
sys.path.insert(0, "{folder}/lib")
from openhands_cli.entrypoint import main

main()
"""


class OpenHands(CliAgent):
    name = "openhands"
    version = "1.16.0"
    check_script = repair("terminal", security_risk="LOW")

    @classmethod
    def install(cls, folder: Path) -> None:
        pip_install(cls.name, folder, copy_python(PYTHON, folder / "python"))
        (folder / "run.py").write_text(_RUN.format(folder=folder_of(cls.name)), encoding="utf-8")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        llm = {
            "model": f"openai/{launch.policy.model}",
            "base_url": f"{launch.url}/v1",
            "api_key": launch.key,
            "usage_id": "agent",
            "timeout": 86400,  # seconds; the proxy's client has a limit
            "num_retries": 2,
            "max_input_tokens": launch.policy.max_context,
            "max_output_tokens": launch.max_reply,
            "native_tool_calling": True,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
        agent = {"kind": "Agent", "llm": llm, "tools": [], "system_prompt_kwargs": {"cli_mode": True}}
        environment = {
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "ALLOW_SHORT_CONTEXT_WINDOWS": "true",  # less than 16,384 tokens
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # not from the network
            "NO_COLOR": "1",
        }
        command = own_python_command(
            f"{folder_of(cls.name)}/python",
            f'{folder_of(cls.name)}/run.py --headless --json --always-approve -t "$(cat {HOME}/task.txt)" </dev/null',
        )
        files = {"task.txt": launch.task.statement, ".openhands/agent_settings.json": json.dumps(agent)}
        return Command(command, environment, files)
