"""What a checkpoint's `config.json` has to say to a recipe: whether it is that model, or how it is to become it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_path
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.families import Config, Family, read_config
from slime_swe.recipes.violation import Violation

CONFIG = "config.json"


def with_model(recipe: Recipe, spec: str, folder: str) -> Recipe:
    """The recipe for another model of its family: a folder, or the `ORG/NAME` that `folder` holds.

    Raises `UserError` where it isn't there, or of another family.
    """
    path = checkpoint_path(spec, folder)
    if not (path / CONFIG).is_file():
        raise UserError(f"model={spec}: {path} holds no {CONFIG}: {_how_to_get(spec, path)}")
    found = read_folder(path, recipe.model.kind).part()
    model = dataclasses.replace(recipe.model, checkpoint=spec, config=found, folder=folder)
    return dataclasses.replace(recipe, model=model, description=f"{spec}, as recipe {recipe.name} does it")


def mismatches(recipe: Recipe) -> list[Violation]:
    """Where the recipe's `model.config` is not the checkpoint's; nothing where no checkpoint lies here.

    A run can be planned on a machine that holds no model: only what is there is compared. Raises `UserError` where a
    `config.json` is there and is of no model that can be trained.
    """
    path = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    if not (path / CONFIG).is_file():
        return []
    found = read_folder(path, recipe.model.kind).values
    stated = read_config(recipe.model.kind, recipe.model.config)[1].values
    fix = f"write model={recipe.model.checkpoint} to take all of it from there, or name the right model.checkpoint"
    return [
        Violation(
            f"model.config.{key}", f"model.config.{key}={value} is not what {path / CONFIG} says, {found[key]}", fix
        )
        for key, value in stated.items()
        if key in found and value != found[key]
    ]


def read_folder(folder: Path, family: Family) -> Config:
    """The folder's `config.json`, read. Raises `UserError` where it can't be, or is of no model that can be trained."""
    path = folder / CONFIG
    try:
        return read_config(family, json.loads(path.read_text(encoding="utf-8")))[1]
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def _how_to_get(spec: str, path: Path) -> str:
    if path.parts[-2:] == tuple(spec.split("/")):
        return (
            f"`hf download {spec} --local-dir {path}` fetches the model, and with {CONFIG} after its name what `plan` "
            "and `train --dry-run` read of it"
        )
    return "give a folder that holds a model in Hugging Face format, or ORG/NAME"
