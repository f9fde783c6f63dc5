"""The engine for GPUs: SLiME's own `train.py` as a Ray job."""

from __future__ import annotations

from pathlib import Path

from launch.args import checkpoint_folder
from launch.engines.base import Start
from launch.output import print_json
from launch.plan.plan import make_plan
from launch.slime.environment import Homes
from launch.slime.job import Job
from launch.slime.journals import cut_back
from launch.slime.places import TRACKER, Places
from launch.slime.render import render
from recipes.base import Recipe, RecipeError


def check(recipe: Recipe, start: Start) -> None:
    """Raise the `ValueError` of what would keep the recipe from running, before Ray or a GPU is touched."""
    if not start.ignore_plan:
        require_fit(recipe)
    Homes.find().require()
    require_checkpoints(recipe)
    render(recipe, Path(recipe.run.dir))


def require_fit(recipe: Recipe) -> None:
    """Raise `RecipeError` where the planner says that the recipe does not fit its cluster."""
    plan = make_plan(recipe)
    if not plan.fits:
        problems = "\n".join(f"  {problem}" for problem in plan.problems)
        raise RecipeError(
            f"the plan of {recipe.name} does not fit its cluster:\n{problems}\n`slime-swe plan` shows the figures and "
            "proposes a change; --ignore-plan starts it all the same"
        )


def require_checkpoints(recipe: Recipe) -> None:
    """Raise `RecipeError` where the model, or the same weights converted for Megatron, is not there."""
    folder = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
    converted = folder.with_name(f"{folder.name}_torch_dist")
    if not (converted / TRACKER).is_file():
        raise RecipeError(
            f"{converted} holds no Megatron checkpoint ({TRACKER} is missing): `slime-swe doctor "
            f"recipe={recipe.name}` prints the command that converts {folder}"
        )


def run(recipe: Recipe, folder: Path, start: Start) -> int:
    """Run the job on Ray; its exit code."""
    from launch.ray.run import run_job  # Ray takes seconds to import

    folder = folder.resolve()
    if start.resume:
        cut_back(Places(folder))
    code = run_job(job(recipe, folder, resume=start.resume), recipe, folder)
    if start.as_json:
        print_json({"run": str(folder), "exit_code": code})
    return code


def job(recipe: Recipe, folder: Path, *, resume: bool) -> Job:
    """The job of a run in `folder`."""
    return render(recipe, folder, resume=resume)
