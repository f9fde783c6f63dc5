"""The engine for a machine without a GPU: trains in this process."""

from __future__ import annotations

from pathlib import Path

from launch.args import to_args
from launch.engines.base import Start
from launch.extras import EMBEDDED, require
from launch.progress import make_progress
from launch.slime.job import Job
from launch.summary import tell_summary
from recipes.base import Recipe, RecipeError


def check(recipe: Recipe, start: Start) -> None:
    """Raise the `ValueError` of what would keep the recipe from running."""
    require(*EMBEDDED)
    if start.resume:
        return  # the run has started once, and the loop compares what it resumes
    args = to_args(recipe, Path(recipe.run.dir))
    from launch.preflight import check_args  # torch takes seconds to import; the other commands don't need it

    check_args(args)


def run(recipe: Recipe, folder: Path, start: Start) -> int:
    """Train, and print the summary."""
    from embedded.loop import train  # torch, as above

    args = to_args(recipe, folder, resume=start.resume)
    with make_progress(recipe, folder) as progress:
        summary = train(args, progress)
    tell_summary(summary, folder, as_json=start.as_json)
    return 0


def job(recipe: Recipe, folder: Path, *, resume: bool) -> Job:
    """There is none: raises `RecipeError`."""
    raise RecipeError("engine=embedded trains in this process and starts no command: --dry-run has nothing to show")
