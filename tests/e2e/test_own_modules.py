"""Modules of the user's own, named like our folders, in the current folder: each is reached by its own name."""

from __future__ import annotations

import json

import pytest

FILES = {
    "rewards.py": """
async def reward(args, sample, **kwargs):
    return 0.25
""",
    "rollout.py": "from slime_swe.rollout.slime_plugin import log_rollout as log",
    "recipes/mine.py": """
import dataclasses
from slime_swe.recipes import tiny_cpu

def recipe():
    return dataclasses.replace(tiny_cpu.recipe(), name="mine")

def number():
    return 7
""",
    "data_sources.py": """
from slime_swe.data_sources.registry import load_tasks

def load(split):
    return load_tasks(f"synthetic:{split}")[:4]
""",
    "launch/__init__.py": "raise SystemExit('the wrong module')",
    "embedded.py": "raise SystemExit('the wrong module')",
}


@pytest.fixture
def own(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


WORDS = [
    "recipe=recipes.mine", "reward.function=rewards.reward", "algorithm.group_filter=''", "rollout.log=rollout.log",
    "data.train=[data_sources.load:train]", "data.eval={}", "rollout.batch_size=2", "rollout.samples_per_task=2",
    "run.num_rollouts=1", "run.name=a",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_uses_them(cli, own):
    result = cli("train", *WORDS, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["reward_per_step"] == [0.25]
    assert "name: mine" in (own / "runs/a/recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("reward.function=rewards.missing", "reward.function='rewards.missing': module rewards has no 'missing'"),
        pytest.param("rollout.agent=rollout.missing", "missing", marks=pytest.mark.extended("names of nothing")),
        ("engine=recipes.mine.number", "engine=recipes.mine.number: it must be a subclass"),
    ],
)
def test_what_is_wrong_with_one_is_said_without_a_traceback(cli, own, change, said):
    result = cli("train", *WORDS, change)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr and "Traceback" not in result.stderr
