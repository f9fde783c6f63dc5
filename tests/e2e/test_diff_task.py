"""`task=diff` trains: with the native agent, and with the one whose reply is the answer."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import here_in, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "agent", ["blocks", pytest.param("native", marks=pytest.mark.extended("agents of diff tasks"))]
)
def test_likeness_is_trained_on(agent, tmp_path):
    pytest.importorskip("cydifflib")
    result = here_in(tmp_path)(
        "train", "--ignore-integrity", "recipe=tiny_cpu", "task=diff", f"agent={agent}", "run.name=a",
        "run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=2", "rollout.max_context=1600",
        "data.train=['diff:train?limit=4']", "data.eval={}", "reward.weights={format: 0.1, repetition: 0.1}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    episodes = lines_of(tmp_path / "runs" / "a" / "episodes.jsonl")
    assert len(episodes) == 8 and all(episode["infrastructure"] is None for episode in episodes)
    for episode in episodes:
        score = episode["score"]
        assert episode["reward"] == score["value"] and {"format", "repetition"} <= {*score["components"]}
        empty = score["evidence"]["outcome"] == "empty_patch"
        assert score["value"] < -0.7 if empty else -0.1 <= score["value"] <= 1.1
    if agent == "blocks":
        assert all(episode["episode"]["turns"] == 1 for episode in episodes)
