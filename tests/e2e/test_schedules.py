"""Runs whose episodes go on over training steps: nothing is lost, nothing too old, and kills change nothing of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import lines_of, timeless
from tests.e2e.test_killed import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROLLOUTS, EPISODES, STALENESS = 5, 4, 2


@pytest.fixture(scope="module")
def words(small: list[str]) -> list[str]:
    return [*small, f"run.num_rollouts={ROLLOUTS}", "data.eval={}", "algorithm.steps_per_rollout=1"]


def check(run: Path) -> None:
    steps = [record for record in lines_of(run / "metrics.jsonl") if record["kind"] == "train"]
    assert [step["rollout_id"] for step in steps] == list(range(ROLLOUTS))
    assert all(step["rollout/staleness_max"] <= STALENESS and not step["infrastructure_failures"] for step in steps)
    assert all(step.get("logprob_diff_max", 0.0) <= 1e-9 for step in steps), "what older weights sampled is left out"
    episodes = lines_of(run / "episodes.jsonl")
    assert Counter(record["rollout_id"] for record in episodes) == dict.fromkeys(range(ROLLOUTS), EPISODES)
    assert max(Counter(record["index"] for record in episodes).values()) == 1, "each is trained once"
    assert not any(record["infrastructure"] for record in episodes)


@pytest.mark.parametrize(
    ("schedule", "kills"),
    [
        ("continuous", 0),
        *(pytest.param(*row, marks=pytest.mark.extended("schedules")) for row in (("carry", 0), ("continuous", 15))),
    ],
)
def test_every_episode_is_trained_once_and_in_time(schedule, kills, words, tmp_path):
    words = [*words, f"rollout.schedule={schedule}", f"rollout.max_staleness={STALENESS}"]
    done = runs = 0
    while not runs or done < kills:
        runs += 1
        folder = tmp_path / str(runs)
        folder.mkdir()
        done += play(folder, words, min(kills - done, 8), seed=runs).kills
        check(folder / "runs" / "a")


@pytest.mark.extended("tests/e2e/test_schedules.py::test_every_episode_is_trained_once_and_in_time")
def test_without_staleness_a_run_is_the_synchronous_one(words, here, tmp_path):
    runs = {}
    for schedule in ("sync", "carry"):
        chosen = [f"run.name={schedule}", f"rollout.schedule={schedule}", "rollout.max_staleness=0"]
        done = here("train", *words, *chosen)
        assert done.returncode == 0, done.stderr
        runs[schedule] = tmp_path / "runs" / schedule
    assert timeless(runs["carry"] / "metrics.jsonl") == timeless(runs["sync"] / "metrics.jsonl")
