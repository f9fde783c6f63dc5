"""Refuse a run whose training shows what it is evaluated on; record what was compared and what was allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from data_sources.contamination import Overlap, find_overlaps, require_clean
from data_sources.registry import load_tasks
from recipes.base import Data, Recipe

OVERLAP_FILE = "overlap.json"


@dataclass(frozen=True)
class Comparison:
    """What of a run's tasks was compared. `compared` is false where another data source decides what is trained on."""

    compared: bool
    trained: int = 0
    evaluated: int = 0
    allowed: Sequence[Overlap] = ()


def check_overlap(recipe: Recipe) -> Comparison:
    """Raises `ContaminationError` for an overlap that `data.allow_overlap` does not name."""
    data = recipe.data
    if data.source != Data.source:
        return Comparison(compared=False)
    training = [task for spec in data.train for task in load_tasks(spec)]
    evaluation = [task for spec in data.eval.values() for task in load_tasks(spec)]
    allowed = require_clean(find_overlaps(training, evaluation), data.allow_overlap)
    return Comparison(True, len(training), len(evaluation), allowed)


def record_overlap(comparison: Comparison, folder: Path) -> None:
    """Write the comparison into the run's folder."""
    text = orjson.dumps(asdict(comparison), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    (folder / OVERLAP_FILE).write_bytes(text)
