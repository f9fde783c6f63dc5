"""A resumed run under SLiME: its journals hold each rollout once."""

from __future__ import annotations

import orjson
import pytest

from launch.slime.journals import cut_back
from launch.slime.places import TRACKER, Places


@pytest.fixture
def places(tmp_path):
    """A run that was killed in its fifth rollout (number 4), in the middle of a line."""
    places = Places(tmp_path)
    places.checkpoints.mkdir()
    for name, numbers in (("episodes.jsonl", (0, 0, 1, 1, 2, 2, 3, 3, 4)), ("evaluations.jsonl", (0, 0, 1, 1, 3, 3))):
        lines = b"".join(orjson.dumps({"rollout_id": number, "index": i}) + b"\n" for i, number in enumerate(numbers))
        (tmp_path / name).write_bytes(lines + b'{"rollout_id": 4, "ind')
    return places


def rollouts(places, name):
    return [orjson.loads(line)["rollout_id"] for line in (places.run / name).read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("saved", "played", "evaluated"),
    [
        ("1", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("2\n", [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ("4", [0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 0, 1, 1, 3, 3]),
    ],
)
def test_what_came_after_the_newest_checkpoint_is_dropped(places, saved, played, evaluated):
    (places.checkpoints / TRACKER).write_text(saved)
    cut_back(places)
    assert (rollouts(places, "episodes.jsonl"), rollouts(places, "evaluations.jsonl")) == (played, evaluated)


def test_nothing_is_left_of_a_run_without_a_checkpoint(places):
    cut_back(places)
    assert (rollouts(places, "episodes.jsonl"), rollouts(places, "evaluations.jsonl")) == ([], [])


def test_a_run_that_has_not_written_yet_is_resumed(tmp_path):
    cut_back(Places(tmp_path))
    assert list(tmp_path.iterdir()) == []
