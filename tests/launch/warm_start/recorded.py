"""A small file of recorded episodes, and recipes that start from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from slime_swe.recipes.base import Recipe, WarmStart


def line(episode: str, **values: Any) -> dict[str, Any]:
    given = {"episode": episode, "task": f"task of {episode}", "reward": 1.0, "vocabulary": ""}
    return given | {"tokens": [1, 2, 3, 4, 5], "loss_mask": [0, 1, 1]} | values


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))
    return path


def with_data(recipe: Recipe, path: Path) -> Recipe:
    """The recipe with a warm start from three episodes, one of which has two samples."""
    write(path, line("a"), line("b"), line("b", loss_mask=[0, 0, 1]), line("c"))
    return replace(recipe, warm_start=WarmStart(data=str(path), batch_size=2))
