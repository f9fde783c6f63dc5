"""`task=arc` on a laptop: the tiny model trains on generated puzzles, whatever it makes of them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_tiny_recipe_trains_on_puzzles(here, tmp_path):
    small = ["run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=2", "data.eval={}"]
    result = here("train", "--ignore-integrity", "recipe=tiny_cpu", "task=arc", *small, "run.name=a", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["infrastructure_failures"] == 0 and len(summary["reward_per_step"]) == 2
    episodes = lines_of(tmp_path / "runs" / "a" / "episodes.jsonl")
    assert len(episodes) == 8
    assert all(record["infrastructure"] is None and record["score"]["value"] in (-1.0, 1.0) for record in episodes)
