"""`slime-swe probe` by the real command line, and a run whose policy never calls a tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_swe.launch.config import read_recipe
from slime_swe.launch.probe import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_seed_policy_is_found_to_act(here, task_files, tmp_path):
    words = ["recipe=tiny_cpu", f"data.train=[{task_files}/train.jsonl]", "--limit", "3", "--samples", "1"]
    result = here("probe", *words)
    assert result.returncode == 0, result.stderr
    assert "The policy can act." in result.stdout and "What to change" in result.stdout
    (folder,) = (tmp_path / "runs").glob("probe-tiny_cpu-*")
    found = json.loads((folder / "probe.json").read_bytes())
    assert (found["recipe"], found["agent"], found["tool_format"]) == ("tiny_cpu", "native", "qwen3_coder")
    assert (found["tasks"], found["samples"], found["episodes"]) == (3, 1, 3)
    assert found["acts"] and found["with_call"] > 0 and found["turns"] == sum(turns_of(folder))
    assert found["cached"] > 0
    assert read_recipe(folder / "recipe.yaml").rollout.outage_limit == PATIENCE, "it waits no hour for what is broken"
    assert f"slime-swe episodes {Path('runs') / folder.name}" in result.stdout
    again = here("probe", *words, "--output", str(folder))
    assert again.returncode == 2 and "give a new folder" in again.stderr


def turns_of(folder: Path) -> list[int]:
    return [json.loads(line)["episode"]["turns"] for line in (folder / "evaluations.jsonl").read_bytes().splitlines()]


@pytest.mark.extended(
    "tests/rollout/test_collect.py::test_a_run_whose_policy_never_calls_a_tool_ends_after_a_hundred_episodes"
)
def test_a_run_whose_policy_never_calls_a_tool_ends_after_a_hundred_episodes(here, small, tmp_path):
    """The seed policy writes qwen3_coder's calls, of which Hermes' format reads none."""
    words = ["model.tool_format=hermes", "rollout.batch_size=4", "rollout.samples_per_task=32", "run.name=silent"]
    result = here("train", *small, *words)
    assert result.returncode == 2
    assert "the first 128 episodes of rollout.agent=native hold not one well-formed tool call" in result.stderr
    recipe = tmp_path / "runs" / "silent" / "recipe.yaml"
    assert f"slime-swe probe recipe={recipe.resolve()}" in result.stderr
    looked = here("probe", f"recipe={recipe}", "--limit", "2", "--samples", "1", "--json")
    assert looked.returncode == 1, looked.stderr
    found = json.loads(looked.stdout)
    assert (found["acts"], found["with_call"]) == (False, 0)
    assert found["advice"][0].startswith("Set model.tool_format=qwen3_coder: it reads a call in ")
