"""What a checkpoint's `config.json` has to say to a recipe: whether it is that model, or how it is to become it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_path
from slime_swe.recipes.architecture import differences
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.families import CONFIG, read_architecture
from slime_swe.recipes.violation import Violation


def with_model(recipe: Recipe, spec: str, folder: str) -> Recipe:
    """The recipe for another model of its family: a folder, or the `ORG/NAME` that `folder` holds.

    Raises `UserError` where it isn't there, or of another family.
    """
    path, family = checkpoint_path(spec, folder), recipe.model.architecture.family
    if not (path / CONFIG).is_file():
        raise UserError(f"model={spec}: {path} holds no {CONFIG}: {_how_to_get(spec, path)}")
    found = read_architecture(path, family)
    model = dataclasses.replace(recipe.model, checkpoint=spec, architecture=found, folder=folder)
    return dataclasses.replace(recipe, model=model, description=f"{spec}, as recipe {recipe.name} does it")


def mismatches(recipe: Recipe) -> list[Violation]:
    """Where the recipe's architecture is not the checkpoint's; nothing where no checkpoint lies here.

    A run can be planned on a machine that holds no model: only what is there is compared. Raises `UserError` where a
    `config.json` is there and is of no model that we know.
    """
    path = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    if not (path / CONFIG).is_file():
        return []
    wrong = differences(recipe.model.architecture, read_architecture(path, recipe.model.architecture.family))
    fix = f"write model={recipe.model.checkpoint} to take all of it from there, or name the right model.checkpoint"
    return [
        Violation(
            f"model.architecture.{name}",
            f"model.architecture.{name}={stated} is not what {path / CONFIG} says, {found}",
            fix,
        )
        for name, (stated, found) in wrong.items()
    ]


def _how_to_get(spec: str, path: Path) -> str:
    if path.parts[-2:] == tuple(spec.split("/")):
        return (
            f"`hf download {spec} --local-dir {path}` fetches the model, and with {CONFIG} after its name what `plan` "
            "and `train --dry-run` read of it"
        )
    return "give a folder that holds a model in Hugging Face format, or ORG/NAME"
