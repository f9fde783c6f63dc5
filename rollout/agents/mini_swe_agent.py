"""mini-SWE-agent: one tool, bash, and a history that only grows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, pip_install, python_command
from slime_swe.rollout.agents.toy_task import repair, tool_call
from slime_swe.rollout.episode import StopReason

# The agent's own command, less what asks a person; at the end it prints why it ended, which no exit code says.
_RUN = """\
import sys

sys.path.insert(0, "{folder}/lib")
from minisweagent.run.mini import app

agent = app(standalone_mode=False)
print("ended:", agent.messages[-1]["extra"]["exit_status"])
"""
_ENDS = {"Submitted": StopReason.SUBMITTED, "LimitsExceeded": StopReason.MAX_TURNS}


class MiniSweAgent(CliAgent):
    name = "mini_swe_agent"
    version = "2.4.6"
    check_script = (*repair("bash")[:3], tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))

    @classmethod
    def install(cls, folder: Path) -> None:
        pip_install(cls.name, folder)
        (folder / "run.py").write_text(_RUN.format(folder=folder_of(cls.name)), encoding="utf-8")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        settings: dict[str, Any] = {
            "run": {"task": launch.task.statement},
            "agent": {"agent_class": "default", "step_limit": launch.policy.max_turns, "cost_limit": 0},
            "model": {"model_name": f"openai/{launch.policy.model}", "model_kwargs": {"max_tokens": launch.max_reply}},
        }
        if launch.system_prompt:  # a small model has no room for the agent's own thousand words
            settings["agent"] |= {"system_template": launch.system_prompt, "instance_template": "{{task}}"}
        environment = {
            "OPENAI_API_BASE": f"{launch.url}/v1",
            "OPENAI_API_KEY": launch.key,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_GLOBAL_CONFIG_DIR": HOME,
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # litellm tries again itself
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # not from the network
        }
        shell = python_command(
            cls.name, f"--yolo --exit-immediately -c mini.yaml -c {HOME}/task.yaml -o {HOME}/trajectory.json </dev/null"
        )
        return Command(shell, environment, {"task.yaml": json.dumps(settings)})

    @classmethod
    def outcome(cls, exit_code: int | None, output: str) -> StopReason:
        ends = re.findall(r"^ended: (\w+)$", output, re.MULTILINE)
        return _ENDS.get(ends[-1], StopReason.GAVE_UP) if ends else StopReason.GAVE_UP
