"""An agent from outside the packages: one file with one class, named by its dotted path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.loop_scope import require_room_for

AGENT = Path(__file__).with_name("tiny_agent.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_agent.py").write_text(AGENT.read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_found_and_states_what_it_needs(folder):
    assert agent_class("my_agent.TinyAgent").is_program
    require_room_for("my_agent.TinyAgent", "overlay")
    with pytest.raises(UserError, match="TinyAgent is a program of its own, which local sandboxes can't hold"):
        require_room_for("my_agent.TinyAgent", "local")


def test_it_is_checked_by_its_own_script(folder):
    command = [sys.executable, "-m", "slime_swe.launch.cli", "agent", "check", "my_agent.TinyAgent", "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    if "sandbox" in done.stderr and done.returncode in (1, 2) and not done.stdout:
        pytest.skip(f"overlay sandboxes do not work here: {done.stderr}")
    report = json.loads(done.stdout)
    assert (report["problems"], report["reward"], report["turns"], report["tool_calls_executed"]) == ([], 1.0, 2, 1)
    assert (report["tokens_retained"], report["forks"]) == (1.0, 0)
    assert (report["malformed"]["reward"], report["malformed"]["turns"]) == (1.0, 3)
