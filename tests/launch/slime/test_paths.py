"""A resumed run under SLiME: its journals hold each rollout once."""

from __future__ import annotations

import orjson
import pytest

from slime_swe.launch.slime.paths import CHECKPOINTS, TRACKER, cut_back


@pytest.fixture
def run(tmp_path):
    """A run that was killed in its fifth rollout (number 4), in the middle of a line."""
    run = tmp_path
    (run / CHECKPOINTS).mkdir()
    for name, numbers in (("episodes.jsonl", (0, 0, 1, 1, 2, 2, 3, 3, 4)), ("evaluations.jsonl", (0, 0, 1, 1, 3, 3))):
        lines = b"".join(orjson.dumps({"rollout_id": number, "index": i}) + b"\n" for i, number in enumerate(numbers))
        (tmp_path / name).write_bytes(lines + b'{"rollout_id": 4, "ind')
    return run


def rollouts(run, name):
    return [orjson.loads(line)["rollout_id"] for line in (run / name).read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("saved", "played", "evaluated"),
    [
        ("1", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("2\n", [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ("4", [0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 0, 1, 1, 3, 3]),
    ],
)
def test_what_came_after_the_newest_checkpoint_is_dropped(run, saved, played, evaluated):
    (run / CHECKPOINTS / TRACKER).write_text(saved)
    cut_back(run)
    assert (rollouts(run, "episodes.jsonl"), rollouts(run, "evaluations.jsonl")) == (played, evaluated)


def test_nothing_is_left_of_a_run_without_a_checkpoint(run):
    cut_back(run)
    assert (rollouts(run, "episodes.jsonl"), rollouts(run, "evaluations.jsonl")) == ([], [])


def test_a_run_that_has_not_written_yet_is_resumed(tmp_path):
    cut_back(tmp_path)
    assert list(tmp_path.iterdir()) == []
