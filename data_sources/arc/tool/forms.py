"""Grids, and the text that shows them. A form is a function from a grid to its text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Grid = list[list[int]]
Form = Callable[[Grid], str]
LONGEST = 30  # rows and columns
COLOURS = 10


def digits(grid: Grid) -> str:
    """Write a line for each row, a digit for each cell."""
    return "\n".join("".join(map(str, row)) for row in grid)


def letters(grid: Grid) -> str:
    """Write a line for each row, a letter for each cell: A for 0 to J for 9."""
    return "\n".join("".join("ABCDEFGHIJ"[cell] for cell in row) for row in grid)


def as_json(grid: Grid) -> str:
    return json.dumps(grid, separators=(",", ":"))


FORMS: dict[str, Form] = {"digits": digits, "letters": letters, "json": as_json}


def grid_of(value: Any) -> Grid:
    """Return the value as a grid: 1 to 30 rows of one length, 1 to 30, of whole numbers from 0 to 9.

    Raises `ValueError`, which says what else it is.
    """
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= LONGEST:
        raise ValueError(f"a grid is a list of 1 to {LONGEST} rows, not {_shown(value)}")
    for row in value:
        if not isinstance(row, (list, tuple)) or not 1 <= len(row) <= LONGEST or len(row) != len(value[0]):
            raise ValueError(f"a row is a list of 1 to {LONGEST} cells, as many as the first has, not {_shown(row)}")
        for cell in row:
            if not isinstance(cell, int) or not 0 <= cell < COLOURS:
                raise ValueError(f"a cell is a whole number from 0 to {COLOURS - 1}, not {_shown(cell)}")
    return [[int(cell) for cell in row] for row in value]


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:40] if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"
