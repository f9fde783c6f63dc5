"""docs/beside_slime.md: the tests, files and commands by which a reader sees what is said are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slime_swe.launch.cli import parse
from slime_swe.launch.config import resolve
from slime_swe.rollout.agents.base import agent_class

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "beside_slime.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("cited", sorted(set(re.findall(r"`((?:tests/(?!test_agent)|rewards/)[^`]+)`", PAGE))))
def test_what_is_cited_of_this_project_is_there(cited):
    path, _, name = cited.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not name or f"def {name}(" in text


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`slime-swe ([^`]+)`", PAGE))))
def test_each_command_is_one(command):
    options = parse(shlex.split(command))
    if options.command == "agent":
        assert agent_class(options.name)
    elif options.command != "integrity":
        assert resolve("qwen3_6_35b_a3b", []).name in command
