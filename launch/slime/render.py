"""Recipe -> `Job`: what `engine=slime` starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from slime_swe.launch.args import Attributes, ours
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.environment import environment
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import to_argv
from slime_swe.launch.slime.paths import RunPaths
from slime_swe.launch.slime.prompts import as_yaml, evaluation_config, prompt_files
from slime_swe.launch.slime.sections import sections
from slime_swe.recipes.base import Recipe

PYTHON = "python3"  # of the machine that the job runs on, where this one has no SLiME


def render(recipe: Recipe, folder: Path, *, resume: bool = False, checkouts: Checkouts | None = None) -> Job:
    """The job of a run in `folder`. Touches no file. Raises `UserError`."""
    paths, found = RunPaths(folder.resolve()), checkouts or Checkouts.find()
    script = "train.py" if recipe.rollout.schedule == "sync" else "train_async.py"
    return Job(
        program=(interpreter(), str(found.slime / script)),
        flags=render_flags(sections(recipe, paths, resume=resume)),
        environment=environment(recipe, paths, found),
        files=settings_files(recipe, paths),
        prompts=prompt_files(recipe, paths),
        directory=paths.run,
    )


def interpreter() -> str:
    """This one where it has SLiME, as in the training image; else the one of the machine that the job will run on."""
    return sys.executable if find_spec("slime") else PYTHON


def render_flags(attributes: Mapping[str, Attributes]) -> dict[str, tuple[str, ...]]:
    """Heading -> arguments; a group that comes to no flag is left out."""
    groups = {heading: to_argv(group) for heading, group in attributes.items()}
    return {heading: group for heading, group in groups.items() if group}


def settings_files(recipe: Recipe, paths: RunPaths) -> dict[Path, str]:
    """The files that the flags name."""
    files = {paths.settings: as_yaml(ours(recipe, paths.run))}
    return files | ({paths.evaluation: evaluation_config(recipe, paths)} if recipe.data.eval else {})
