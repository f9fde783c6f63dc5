"""Shows a call line by line: each line that runs, and the variables that it changed."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .forms import Form, Grid, grid_of
from .interpreter import PROGRAM, described, error_of

MOST_LINES = 400  # of text
MOST_CELLS = 5  # that differ, shown for a grid that has changed


def traced(function: Callable[[Grid], Any], grid: Grid, source: str, form: Form) -> list[str]:
    """Trace one call in lines of text, at most `MOST_LINES`, after which it is ended. The last says what it raised."""
    tracer = _Tracer(source.splitlines(), form)
    sys.settrace(tracer.enter)
    try:
        function(grid)
    except _Enough:
        tracer.text.append("(and more)")
    except BaseException as error:
        tracer.text.append(described(error_of(error)))
    finally:
        sys.settrace(None)
    return tracer.text


class _Enough(BaseException):
    """Ends the call. It is no `Exception`, which programs catch."""


class _Tracer:
    def __init__(self, lines: list[str], form: Form) -> None:
        self._lines = lines
        self._form = form
        self._known: dict[FrameType, dict[str, Any]] = {}
        self._repr = reprlib.Repr()
        self._repr.maxstring = self._repr.maxother = 60
        self.text: list[str] = []

    def _say(self, text: str) -> None:
        """Add lines to the text. Raises `_Enough`, which a trace function passes on to the code that it follows."""
        lines = text.split("\n")
        if len(self.text) + len(lines) >= MOST_LINES:
            raise _Enough
        self.text += lines

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a function that is entered. Those of other files are not followed, nor are comprehensions, which newer
        Pythons make no function of."""
        code = frame.f_code
        return self._step if code.co_filename == PROGRAM and code.co_name[:1] != "<" else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._say_changes(frame)
        if event == "line":
            number = frame.f_lineno
            line = self._lines[number - 1].strip() if number <= len(self._lines) else ""
            self._say(f"{number:4} {line}")
        elif event == "return":
            self._say(self._shown(f"{frame.f_code.co_name} gives", self._kept(argument)))
            self._known.pop(frame, None)
        return self._step

    def _say_changes(self, frame: FrameType) -> None:
        known = self._known.setdefault(frame, {})
        for name, value in list(frame.f_locals.items()):
            kept = self._kept(value)
            if name not in known or known[name] != kept:
                self._say(self._changed(name, known.get(name), kept))
            known[name] = kept

    def _kept(self, value: Any) -> Any:
        """Return a copy of a grid, else a short text."""
        try:
            return grid_of(value)
        except ValueError:
            return self._repr.repr(value)

    def _changed(self, name: str, before: Any, now: Any) -> str:
        if not isinstance(before, list) or not isinstance(now, list) or sizes(before) != sizes(now):
            return self._shown(f"{name} =", now)
        cells = differences(before, now)
        said = [f"     {name}[{row}][{column}]: {before[row][column]} -> {now[row][column]}" for row, column in cells]
        more = [f"     and {len(cells) - MOST_CELLS} more cells of {name}"] if len(cells) > MOST_CELLS else []
        return "\n".join([*said[:MOST_CELLS], *more])

    def _shown(self, before: str, kept: Any) -> str:
        """Write a value behind the text `before`; a grid of several rows stands below."""
        text = self._form(kept) if isinstance(kept, list) else kept
        return f"     {before} {text}" if "\n" not in text else f"     {before}\n{indented(text)}"


def sizes(grid: Grid) -> tuple[int, int]:
    """Return the numbers of rows and of columns."""
    return len(grid), len(grid[0])


def differences(first: Grid, second: Grid) -> list[tuple[int, int]]:
    """Return the row and the column, from 0, of each cell in which two grids of one size differ."""
    rows, columns = sizes(first)
    return [(r, c) for r in range(rows) for c in range(columns) if first[r][c] != second[r][c]]


def indented(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.split("\n"))
