"""aider: edits by blocks of text rather than tools, and a history that it rewrites each turn."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from slime_swe.rollout.agents.cli import HOME, CliAgent, Command, Launch, folder_of, pip_install, python_command
from slime_swe.rollout.agents.toy_task import BUG, FIX
from slime_swe.rollout.proxy.conversation import Request

MAX_FILES = 20  # given to it at the start; of larger repositories it has a map

# aider's own command, with the cache of its map outside the repository.
_RUN = """\
import sys

sys.path.insert(0, "{folder}/lib")
from aider.main import main
from aider.repomap import RepoMap

RepoMap.TAGS_CACHE_DIR = "{home}/tags"
sys.exit(main())
"""
_FLAGS = (
    "--yes-always --no-check-update --no-show-release-notes --analytics-disable --no-show-model-warnings --no-pretty "
    "--no-fancy-input --no-gitignore --no-auto-commits --no-dirty-commits --no-detect-urls --no-suggest-shell-commands "
    f"--no-auto-lint --disable-playwright --edit-format diff --timeout 86400 --input-history-file {HOME}/input "
    f"--chat-history-file {HOME}/chat.md --model-metadata-file {HOME}/model.json --message-file {HOME}/task.txt"
)
_EDIT = "{said}\n\ncalc.py\n```python\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n"
_REPAIR = _EDIT.format(said="It subtracts.", old=f"    {BUG}", new=f"    {FIX}")


class Aider(CliAgent):
    name = "aider"
    version = "0.86.2"
    calls_tools = False
    check_script = (_REPAIR, "The sums are right now.")
    malformed_script = (
        _EDIT.format(said="First the title.", old='"""Sums."""', new='"""Sums of two."""'),
        _REPAIR.replace("=======\n", "").replace("subtracts", "should add"),
        *check_script,
    )

    @classmethod
    def install(cls, folder: Path) -> None:
        pip_install(cls.name, folder)
        (folder / "run.py").write_text(_RUN.format(folder=folder_of(cls.name), home=HOME), encoding="utf-8")

    @classmethod
    def start(cls, launch: Launch) -> Command:
        model = f"openai/{launch.policy.model}"
        known = {"max_input_tokens": launch.policy.max_context, "max_output_tokens": launch.max_reply, "mode": "chat",
                 "litellm_provider": "openai", "input_cost_per_token": 0, "output_cost_per_token": 0}  # fmt: skip
        environment = {
            "OPENAI_API_BASE": f"{launch.url}/v1",
            "OPENAI_API_KEY": launch.key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # not from the network
        }
        oracle = launch.task.oracle
        testing = f"--auto-test --test-cmd {shlex.quote(command)}" if (command := oracle.agent_command) else ""
        files = [path for path in launch.task.workspace.files if path not in oracle.protected]
        shown = shlex.join(files) if len(files) <= MAX_FILES else ""
        git = "git rev-parse >/dev/null 2>&1 && git= || git=--no-git"  # or it would make a repository
        shell = f"{git}\n{python_command(cls.name, f'--model {model} $git {_FLAGS} {testing} {shown} </dev/null')}"
        return Command(
            shell, environment, {"task.txt": launch.task.statement, "model.json": json.dumps({model: known})}
        )

    @classmethod
    def side_call(cls, request: Request) -> bool:
        """Say whether a call wants a commit message; only a person's settings in the repository could ask for one."""
        return any("Git commit messages" in message.text[:500] for message in request.messages[:1])
