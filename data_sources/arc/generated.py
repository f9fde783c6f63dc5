"""Puzzles of grids of two or three rows and columns, which fit a tiny model's context: recolour, flip, turn, crop.

They are always the same. All rules of `rules()` that make a puzzle's training pairs make its hidden output too, which
is not shown. No two puzzles have an input in common.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from slime_swe.data_sources.arc.oracle import Grid, Pair
from slime_swe.data_sources.arc.score import guessable

SIZES = {"generated": 128, "heldout": 32}
TRAIN, TEST = 2, 1  # pairs of a puzzle
_COLOURS = range(1, 5)
Rule = Callable[[Grid], Grid]


def rules() -> dict[str, Rule]:
    """Name -> what makes the output."""
    found: dict[str, Rule] = {
        "flip_rows": lambda grid: grid[::-1],
        "flip_columns": lambda grid: tuple(row[::-1] for row in grid),
        "transpose": lambda grid: tuple(zip(*grid, strict=True)),
        "turn": lambda grid: tuple(zip(*grid[::-1], strict=True)),
        "first_row": lambda grid: grid[:1],
        "last_row": lambda grid: grid[-1:],
        "first_column": lambda grid: tuple(row[:1] for row in grid),
        "last_column": lambda grid: tuple(row[-1:] for row in grid),
    }
    return found | {f"recolour_{a}_{b}": _recolour(a, b) for a in _COLOURS for b in _COLOURS if a != b}


def generated(split: str) -> Iterator[tuple[str, list[Pair], list[Pair]]]:
    """(id, training pairs, test pairs) of each puzzle of a split."""
    dice = random.Random("arc")  # the text fixes which puzzles there are
    known = rules()
    seen: set[Grid] = set()
    wanted = [(name, number) for name, size in SIZES.items() for number in range(size)]
    while wanted:
        name, number = wanted[0]
        rule = known[dice.choice(sorted(known))]
        inputs = [_grid(dice) for _ in range(TRAIN + TEST)]
        pairs = [Pair(grid, rule(grid)) for grid in inputs]
        train, test = pairs[:TRAIN], pairs[TRAIN:]
        if len({*inputs} - seen) < len(inputs) or guessable(train, test) or not _leave_one(train, test, known):
            continue
        seen |= {*inputs}
        wanted.pop(0)
        if name == split:
            yield f"arc-{name}-{number:03d}", train, test


def _leave_one(train: list[Pair], test: list[Pair], known: dict[str, Rule]) -> bool:
    """Whether all rules that make the training pairs make the hidden outputs too."""
    fitting = [rule for rule in known.values() if all(rule(pair.input) == pair.output for pair in train)]
    return all(rule(pair.input) == pair.output for rule in fitting for pair in test)


def _recolour(old: int, new: int) -> Rule:
    return lambda grid: tuple(tuple(new if cell == old else cell for cell in row) for row in grid)


def _grid(dice: random.Random) -> Grid:
    columns = dice.choice((2, 3))
    return tuple(tuple(dice.choice(_COLOURS) for _ in range(columns)) for _ in range(dice.choice((2, 3))))
