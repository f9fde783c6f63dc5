"""The first run against each other one, as `slime-swe compare` has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.extras import require


def compare_runs(folders: Sequence[Path], notes: list[str]) -> list[dict[str, Any]]:
    """By evaluation set, the newest evaluation of each. notes: is given why a comparison is not there."""
    found: list[dict[str, Any]] = []
    for folder in folders[1:]:
        try:
            found += _compared(folders[0], folder)
        except UserError as error:
            notes.append(f"{folders[0].name} and {folder.name} are not compared: {error}")
    return found


def _compared(a: Path, b: Path) -> Iterator[dict[str, Any]]:
    require("numpy", "scipy", extra="compare")
    from slime_swe.launch.compare.comparison import compare  # numpy and scipy are of the `compare` extra
    from slime_swe.launch.compare.sources import matched, read_side

    for name, left, right in matched(*(read_side(str(folder), "") for folder in (a, b))):
        found = compare(name, left, right)
        shown = {key: found[key] for key in ("difference", "intervals", "verdict", "p_value", "test", "tasks")}
        rates = {"solve_rate_a": found["a"]["solve_rate"], "solve_rate_b": found["b"]["solve_rate"]}
        yield {"set": name, "a": a.name, "b": b.name, **shown, **rates}
