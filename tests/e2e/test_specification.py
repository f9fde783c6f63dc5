"""`recipe=tiny_cpu task=specification` trains on functions without a body: the real command, sandboxes and server."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import lines_of

pytest.importorskip("coverage")
pytest.importorskip("libcst")

pytestmark = [
    pytest.mark.extended(
        "tests/data_sources/specification/test_tasks.py::test_gold_solves_and_nothing_does_not_over_three_runs"
    ),
    *(pytest.mark.slow, pytest.mark.timeout(900)),
]

WORDS = [
    "--ignore-integrity", "recipe=tiny_cpu", "task=specification", "run.name=a",
    "run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=2",
    "data.train=['specification:synthetic?limit=4']", "data.eval.heldout='specification:synthetic_heldout?limit=4'",
    "data.eval.unseen='specification:synthetic_unseen?limit=4'",
]  # fmt: skip


def test_a_few_steps_of_it_train(cli, tmp_path):
    result = cli("train", *WORDS, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert len(summary["reward_per_step"]) == 2
    episodes = lines_of(tmp_path / "runs/a/episodes.jsonl")
    assert len({record["index"] for record in episodes}) == 8
    assert all(record["score"] is not None and record["infrastructure"] is None for record in episodes)
