"""Recipe -> `Job`: what `engine=slime` starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from launch.args import Attributes, ours
from launch.slime.argv import words
from launch.slime.environment import Homes, environment
from launch.slime.job import Job
from launch.slime.places import Places
from launch.slime.prompts import as_yaml, evaluation_config, prompt_files
from launch.slime.sections import sections
from recipes.base import Recipe

PYTHON = "python3"  # of the machine that the job runs on, where this one has no SLiME


def render(recipe: Recipe, folder: Path, *, resume: bool = False, homes: Homes | None = None) -> Job:
    """The job of a run in `folder`. Touches no file. Raises `RecipeError` or `FlagError`."""
    places, found = Places(folder.resolve()), homes or Homes.find()
    script = "train.py" if recipe.rollout.schedule == "sync" else "train_async.py"
    return Job(
        program=(interpreter(), str(found.slime / script)),
        flags=render_flags(sections(recipe, places, resume=resume)),
        environment=environment(recipe, places, found),
        files=settings_files(recipe, places),
        prompts=prompt_files(recipe, places),
        directory=places.run,
    )


def interpreter() -> str:
    """This one where it has SLiME, as in the training image; else the one of the machine that the job will run on."""
    return sys.executable if find_spec("slime") else PYTHON


def render_flags(attributes: Mapping[str, Attributes]) -> dict[str, tuple[str, ...]]:
    """Heading -> words; a group that comes to no flag is left out."""
    groups = {heading: words(group) for heading, group in attributes.items()}
    return {heading: group for heading, group in groups.items() if group}


def settings_files(recipe: Recipe, places: Places) -> dict[Path, str]:
    """The files that the flags name."""
    files = {places.settings: as_yaml(ours(recipe, places.run))}
    return files | ({places.evaluation: evaluation_config(recipe, places)} if recipe.data.eval else {})
