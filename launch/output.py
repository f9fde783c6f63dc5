"""What `slime-swe` prints: one JSON document on standard output, or text: sparklines, durations, rates."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence

import orjson
from rich.console import Console

WIDTH = 80  # columns of a table of figures
BLOCKS = "▁▂▃▄▅▆▇█"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def table_console() -> Console:
    """Return standard output, never narrower than a table: a narrow terminal wraps its lines, and no figure is cut."""
    console = Console()
    console.width = max(console.width, WIDTH)
    return console


def print_json(document: object) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    sys.stdout.write(orjson.dumps(document, option=options).decode() + "\n")


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, one line a row whatever the terminal's width, so that they can be searched and cut."""
    cells = [[visible(cell).replace("\n", r"\x0a").replace("\t", r"\x09") for cell in row] for row in rows]
    table = [[heading.replace("_", " ") for heading in headings], *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def visible(text: str) -> str:
    """Make fit for a terminal what an agent, a task or a test wrote: control characters but newline and tab become text
    such as `\\x1b`, so that none of them moves the cursor, sets a title or fills the clipboard."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw at most `width` blocks, each the mean of an equal run of `values`, from the least mean to the greatest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    columns = min(width, len(finite))
    means = []
    for column in range(columns):
        run = finite[column * len(finite) // columns : (column + 1) * len(finite) // columns]
        means.append(sum(run) / len(run))
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def duration(seconds: float) -> str:
    """Write seconds as `42 s`, `3:05` or `1:02:03`."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 1:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Write a rate and its interval as `81.2 % (74.0–86.9)`; an em dash where there is no value."""
    if value is None:
        return "–"
    bounds = f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})" if interval else ""
    return f"{100 * value:.1f} %{bounds}"
