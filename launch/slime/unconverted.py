"""Checkpoints in Megatron's format, which no server reads, and the command that makes a Hugging Face model of one."""

from __future__ import annotations

import shlex
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_path
from slime_swe.launch.config import read_recipe
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.launch.slime.paths import EXPORTS
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.retention import METADATA, TRACKER, saved


def megatron_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a folder is, or the newest one in it; None where it holds none."""
    if (folder / METADATA).is_file():
        return folder
    if not (folder / TRACKER).is_file():
        return None
    found = saved(folder)
    return found[max(found)] if found else folder / "release"


def unconverted(checkpoint: Path) -> UserError:
    """The error of one that should be a model in Hugging Face format: it says where one is, and how it is made."""
    checkpoint = checkpoint.resolve()
    run = next((folder for folder in checkpoint.parents[:3] if (folder / RECIPE_FILE).is_file()), None)
    said = f"{checkpoint} is a checkpoint in Megatron's format, and evaluations read Hugging Face's"
    if run is None:
        return UserError(f"{said}. MODEL being the folder that training began with, convert it: {_command(checkpoint)}")
    return UserError(
        f"{said}: take one of {run / EXPORTS}, where the run keeps its weights in that format, or convert it: "
        f"{_command(checkpoint, read_recipe(run / RECIPE_FILE))}"
    )


def _command(checkpoint: Path, recipe: Recipe | None = None) -> str:
    """SLiME's own tool, on one line."""
    checkouts, origin, size = SLIME.checkouts(), "MODEL", list[str]()
    if recipe is not None:
        origin = str(checkpoint_path(recipe.model.checkpoint, recipe.model.folder))
        size = ["--vocab-size", str(recipe.model.shape.vocab)]  # without the rows that pad it
    words = ["--input-dir", str(checkpoint), "--output-dir", f"{checkpoint}_hf", "--origin-hf-dir", origin, *size]
    path = shlex.quote(f"{checkouts.megatron}:{checkouts.loop}")
    return (
        f"cd {shlex.quote(str(checkouts.loop))} && PYTHONPATH={path} "
        f"python tools/convert_torch_dist_to_hf.py {shlex.join(words)}"
    )
