"""A resumed run under SLiME: its journals hold each rollout once."""

from __future__ import annotations

import orjson
import pytest

from slime_swe.launch.slime.paths import TRACKER, RunPaths, cut_back


@pytest.fixture
def paths(tmp_path):
    """A run that was killed in its fifth rollout (number 4), in the middle of a line."""
    paths = RunPaths(tmp_path)
    paths.checkpoints.mkdir()
    for name, numbers in (("episodes.jsonl", (0, 0, 1, 1, 2, 2, 3, 3, 4)), ("evaluations.jsonl", (0, 0, 1, 1, 3, 3))):
        lines = b"".join(orjson.dumps({"rollout_id": number, "index": i}) + b"\n" for i, number in enumerate(numbers))
        (tmp_path / name).write_bytes(lines + b'{"rollout_id": 4, "ind')
    return paths


def rollouts(paths, name):
    return [orjson.loads(line)["rollout_id"] for line in (paths.run / name).read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("saved", "played", "evaluated"),
    [
        ("1", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("2\n", [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ("4", [0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 0, 1, 1, 3, 3]),
    ],
)
def test_what_came_after_the_newest_checkpoint_is_dropped(paths, saved, played, evaluated):
    (paths.checkpoints / TRACKER).write_text(saved)
    cut_back(paths)
    assert (rollouts(paths, "episodes.jsonl"), rollouts(paths, "evaluations.jsonl")) == (played, evaluated)


def test_nothing_is_left_of_a_run_without_a_checkpoint(paths):
    cut_back(paths)
    assert (rollouts(paths, "episodes.jsonl"), rollouts(paths, "evaluations.jsonl")) == ([], [])


def test_a_run_that_has_not_written_yet_is_resumed(tmp_path):
    cut_back(RunPaths(tmp_path))
    assert list(tmp_path.iterdir()) == []
