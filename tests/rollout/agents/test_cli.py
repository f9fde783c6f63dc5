"""How agents are started and understood, without one: their shell commands, and what tells an end from a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.agents import cli
from slime_swe.rollout.agents.base import AGENTS, AgentError, agent_class
from slime_swe.rollout.agents.cli import Command, Launch, layer_of, python_command, shell_command
from slime_swe.rollout.agents.toy_task import toy_task
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.proxy.conversation import Message, Request
from slime_swe.rollout.proxy.sessions import Policy

PROGRAMS = {name: made for name in AGENTS if (made := agent_class(name)).is_program}
POLICY = Policy(None, None, "hermes", max_context=32768, max_turns=9)  # type: ignore[arg-type]
LAUNCH = Launch(toy_task(), "http://127.0.0.1:1/s/x", "key", POLICY, 512)
BASH = {"PATH": "/usr/bin:/bin"}


def run(script, folder):
    """In `folder`, with the agent's home in it."""
    script = script.replace(cli.HOME, str(folder / "home"))
    return subprocess.run(["bash", "-c", script], cwd=folder, env=BASH, capture_output=True, text=True, check=False)


def test_files_and_variables_reach_the_command_as_they_are(tmp_path):
    odd = 'it\'s $HOME `id` \\ "quoted"\nsecond line\n\n'
    command = Command('printf %s "$ODD"; cat $HOME/a/b.txt; pwd', {"ODD": odd}, {"a/b.txt": odd})
    ended = run(shell_command(command), tmp_path)
    assert ended.stdout == f"{odd}{odd}{tmp_path}\n"
    assert ended.returncode == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_not_there_is_the_agents_failure(name, tmp_path):
    program = PROGRAMS[name]
    ended = run(shell_command(program.start(LAUNCH)), tmp_path)
    with pytest.raises(AgentError, match=name):
        program.stop_reason(ended.returncode, ended.stdout + ended.stderr, calls=0)


def test_an_image_without_the_right_python_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "python_version", lambda: "3.99")
    ended = run(python_command("mini_swe_agent", ""), tmp_path)
    assert ended.returncode == cli.MISSING
    assert "mini_swe_agent is installed for Python 3.99" in ended.stderr
    with pytest.raises(AgentError, match=r"could not be started.*Python 3\.99"):
        PROGRAMS["mini_swe_agent"].stop_reason(ended.returncode, ended.stderr, calls=0)


MINI, QWEN, CLAUDE, AIDER = "mini_swe_agent", "qwen_code", "claude_code", "aider"


@pytest.mark.parametrize(
    ("name", "code", "output", "reason"),
    [
        (MINI, 0, "Saved trajectory\nended: Submitted\n", StopReason.SUBMITTED),
        (MINI, 0, "ended: LimitsExceeded\n", StopReason.MAX_TURNS),
        (MINI, 0, "ended: RepeatedFormatError\n", StopReason.GAVE_UP),
        (MINI, 1, "ContextWindowExceededError", StopReason.GAVE_UP),
        (QWEN, 0, "It is fixed.", StopReason.SUBMITTED),
        (QWEN, 53, "Reached max session turns", StopReason.MAX_TURNS),
        (QWEN, 1, "", StopReason.GAVE_UP),
        (CLAUDE, 0, "It is fixed.", StopReason.SUBMITTED),
        (CLAUDE, 1, "", StopReason.GAVE_UP),
        (CLAUDE, 1, "Error: Reached max turns (3)", StopReason.MAX_TURNS),
        (AIDER, 0, "Applied edit to calc.py", StopReason.SUBMITTED),
        (AIDER, -1, "", StopReason.GAVE_UP),  # killed
    ],
)
def test_an_end_after_model_calls_is_the_agents_own(name, code, output, reason):
    assert PROGRAMS[name].stop_reason(code, output, calls=3) is reason


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_end_without_a_model_call_is_infrastructure(name):
    """Some return 0 when they could not reach their model."""
    with pytest.raises(AgentError, match=r"without a model call \(exit code 0\): no route"):
        PROGRAMS[name].stop_reason(0, "no route", calls=0)
    assert StopReason.AGENT_ERROR.is_infrastructure
    assert not StopReason.GAVE_UP.is_infrastructure


def test_a_commit_message_of_aiders_is_no_work_on_the_task():
    system = "You are an expert software engineer that generates concise, one-line Git commit messages based on diffs."
    commit = Request("m", (Message("system", system), Message("user", "diff")))
    work = Request("m", (Message("system", "Act as an expert software developer."), Message("user", "Fix it.")))
    assert [PROGRAMS["aider"].side_call(request) for request in (commit, work)] == [True, False]


def test_a_title_of_opencodes_is_no_work_on_the_task():
    title = Request("m", (Message("system", "You are a title generator. You output ONLY a thread title."),))
    work = Request("m", (Message("system", "You are opencode, an interactive CLI tool."), Message("user", "Fix it.")))
    assert [PROGRAMS["opencode"].side_call(request) for request in (title, work)] == [True, False]


def test_an_installer_that_fails_is_said_with_its_last_lines(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed here")
    with pytest.raises(UserError, match=r"npm failed \(exit code \d+\): npm install(.|\n)*ENOENT"):
        cli.npm_install(f"file:{tmp_path}/nothing", tmp_path)


def test_a_layer_that_no_run_has_opened_for_long_is_removed_when_another_is_installed(tmp_path):
    def install(folder):
        (folder / "program").write_text("")

    old, used = (layer_of("codex", version, install, tmp_path) for version in "12")
    long_ago = time.time() - (cli.UNUSED_DAYS + 1) * 86400
    for place in (old, used):
        os.utime(place, (long_ago, long_ago))
    layer_of("codex", "2", install, tmp_path)
    assert old.is_dir()  # nothing was installed
    new = layer_of("opencode", "1", install, tmp_path)
    assert {place for place in (tmp_path / "agents").iterdir() if place.is_dir()} == {used, new}


def test_a_half_installed_agent_is_not_taken_for_a_whole_one(tmp_path):
    network = [False, True]

    def install(folder):
        (folder / "part").write_text("")
        if not network.pop(0):
            raise UserError("no network")
        (folder / "whole").write_text("")

    with pytest.raises(UserError, match="no network"):
        layer_of("codex", "0", install, tmp_path)
    place = layer_of("codex", "0", install, tmp_path)
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()) == [
        "opt/agents/codex/part",
        "opt/agents/codex/whole",
    ]
