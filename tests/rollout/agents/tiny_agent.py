"""An agent of forty lines, in no registry: a program that starts at once, with one tool."""

from __future__ import annotations

from pathlib import Path

from slime_swe.rollout.agents.cli import CliAgent, Command, Launch, python_command
from slime_swe.rollout.agents.toy_task import EDIT_COMMAND, tool_call

PROGRAM = """
import json, os, subprocess, urllib.request

messages = [{"role": "user", "content": os.environ["TASK"]}]
function = {"name": "sh", "description": "Run it. " * 300, "parameters": {"type": "object", "properties": {}}}
tool = {"type": "function", "function": function}
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
while True:
    body = json.dumps({"model": "m", "messages": messages, "tools": [tool]}).encode()
    request = urllib.request.Request(os.environ["URL"] + "/v1/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    for call in said.get("tool_calls") or []:
        try:
            command = json.loads(call["function"]["arguments"])["command"]
            result = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        except ValueError:
            result = "the arguments are not JSON"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    if not said.get("tool_calls"):
        break
"""


class TinyAgent(CliAgent):
    name = "tiny_agent"
    version = "1"
    check_script = (tool_call("sh", command=EDIT_COMMAND), "It adds now.")

    @classmethod
    def install(cls, folder: Path) -> None:
        (folder / "run.py").write_text(PROGRAM)

    @classmethod
    def start(cls, launch: Launch) -> Command:
        return Command(
            python_command(cls.name, ""), {"TASK": launch.task.statement, "URL": launch.url, "KEY": launch.key}
        )
