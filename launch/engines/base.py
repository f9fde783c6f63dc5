"""What `slime-swe train` asks of an engine's module, and finding it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from launch.engines import ENGINES
from launch.slime.job import Job
from recipes.base import Recipe, RecipeError


@dataclass(frozen=True)
class Start:
    """How a run is started.

    resume: go on with the run that the folder holds.
    as_json: print one JSON document on standard output, and no other line there.
    ignore_plan: start what the planner says does not fit.
    """

    resume: bool = False
    as_json: bool = False
    ignore_plan: bool = False


class Engine(Protocol):
    """A module with these functions."""

    def check(self, recipe: Recipe, start: Start) -> None:
        """Raise the `ValueError` of what would keep the recipe from running, before a folder is made for it."""

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        """Train in `folder`, which holds the recipe; the exit code."""
        ...

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        """The command that `run` would start; touches nothing. Raises `RecipeError` where it starts none."""
        ...


def engine_of(recipe: Recipe) -> Engine:
    """The module of `recipe.engine`."""
    if recipe.engine not in ENGINES:
        raise RecipeError(f"engine={recipe.engine!r} is not allowed: it must be one of {', '.join(ENGINES)}")
    return cast(Engine, importlib.import_module(ENGINES[recipe.engine]))
