"""The folder of one run, `<run.dir>/<run.name>/`: making it, finding it, and telling whether a recipe still fits it."""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import time
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.files import replace_file
from slime_swe.launch.config import dump_recipe, flatten, read_recipe, save_recipe, with_value
from slime_swe.recipes.base import Recipe

RECIPE_FILE = "recipe.yaml"
LENGTH, KEPT = "run.num_rollouts", "run.keep_checkpoints"
_WHERE = frozenset({"run.name", "run.dir", "cluster.ray_address"})  # a run may be moved


def with_name(recipe: Recipe) -> Recipe:
    """The recipe itself, or with a run name made of recipe, seed and local time where it has none."""
    name = f"{recipe.name}-seed{recipe.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return recipe if recipe.run.name else with_value(recipe, "run.name", name)


def create_run(recipe: Recipe) -> Path:
    """A new folder that holds the resolved recipe. Raises `UserError` where it exists or can't be written."""
    folder = Path(recipe.run.dir) / recipe.run.name
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UserError(
            f"the run {folder} exists already: add --resume to go on with it, or give another run.name"
        ) from error
    except OSError as error:
        raise UserError(f"can't make the run folder {folder}: {error.strerror}; give another run.dir") from error
    try:
        save_recipe(recipe, folder / RECIPE_FILE)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # without its recipe it would only be in the way
        raise UserError(f"can't write {folder / RECIPE_FILE}: {error.strerror}; give another run.dir") from error
    return folder


def find_run(name: str, directory: str = "runs") -> Path:
    """The folder of an existing run, given its name or its path. Raises `UserError` with the nearest names."""
    for folder in (Path(directory) / name, Path(name)):
        if name and (folder / RECIPE_FILE).is_file():
            return folder
    there = sorted(path.parent.name for path in Path(directory).glob(f"*/{RECIPE_FILE}"))
    nearest = difflib.get_close_matches(name, there, n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"there are: {', '.join(there) or 'none'}"
    raise UserError(f"there is no run {name!r} in {directory}: {hint}")


def require_same(recipe: Recipe, folder: Path) -> None:
    """Raise `UserError` with the differing keys where the run in `folder` was started with another recipe.

    A run may be made longer, unless its learning rate falls to zero at its end, and may keep more or fewer checkpoints.
    """
    before = dict(flatten(dataclasses.asdict(read_recipe(folder / RECIPE_FILE))))
    now = dict(flatten(dataclasses.asdict(recipe)))
    changed = [key for key in now if key not in _WHERE and now[key] != before[key]]
    longer = now[LENGTH] > before[LENGTH] and recipe.optimizer.schedule == "constant"
    allowed = {KEPT, LENGTH} if longer else {KEPT}
    if changed and allowed.issuperset(changed):
        replace_file(folder / RECIPE_FILE, dump_recipe(recipe).encode())
    elif changed:
        listed = "; ".join(f"{key} was {before[key]!r} and is {now[key]!r}" for key in changed[:5])
        raise UserError(
            f"can't resume {folder} with another recipe: {listed}. Leave these out, or start a new run with another "
            "run.name; a run can be made longer where optimizer.schedule=constant"
        )
