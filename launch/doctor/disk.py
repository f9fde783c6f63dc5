"""Room for the run and for the model, where the recipe puts them."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launch.args import checkpoint_path
from launch.doctor.finding import Finding, failure, ok, warning
from launch.doctor.machine import Machine
from recipes.base import Recipe

GIB = 1 << 30
STATE_BYTES = 14  # of one weight in a training checkpoint: bf16 weight, fp32 master copy, two fp32 moments
WEIGHT_BYTES = 2  # of one weight in bf16
SMALLEST = 64 << 20  # logs, trajectories and metrics of any run


def check_run_folder(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """A checkpoint is written before the one before it can go, so two must fit. The embedded engine keeps no more."""
    folder = Path(recipe.run.dir)
    one = recipe.model.architecture.parameters * (STATE_BYTES + WEIGHT_BYTES)  # training state, and Hugging Face format
    saved = math.ceil(recipe.run.num_rollouts / max(1, recipe.run.save_interval))
    count = min(saved, 2) if recipe.engine == "embedded" else saved
    refusal = unwritable(folder)
    if refusal:
        yield failure("run folder", refusal, "give another run.dir")
        return
    free = free_bytes(folder)
    found = f"{size(free)} free in {folder}; a checkpoint takes {size(one)}"
    if free < min(2, count) * one + SMALLEST:
        yield failure("run folder", f"{found}, and two must fit", "make room there, or give another run.dir")
    elif free < count * one + SMALLEST:
        yield warning(
            "run folder",
            f"{found}: not all {count} fit",
            "raise run.save_interval, remove old checkpoints as the run goes, or give another run.dir",
        )
    else:
        yield ok("run folder", found)


def unwritable(folder: Path) -> str:
    """Why nothing can be written there, in a file system that really was asked; empty where something can."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * (1 << 16))
    except OSError as error:
        return f"can't write in {place}: {error.strerror}"
    return ""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    folder = folder.expanduser().absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def size(count: float) -> str:
    """`512 MiB`, `1.5 GiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def check_model_folder(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Room for what is not there yet: the checkpoint, and its copy in Megatron's format."""
    folder = Path(recipe.model.folder)
    came = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    missing = [place for place in (came, Path(f"{came}_torch_dist")) if not place.is_dir()]
    refusal = unwritable(folder) if missing else ""
    if refusal:
        yield failure("model folder", refusal, "give another model.folder, or convert the checkpoint elsewhere")
        return
    needed = len(missing) * WEIGHT_BYTES * recipe.model.architecture.parameters
    free = free_bytes(folder)
    if free < needed:
        yield failure(
            "model folder",
            f"{size(free)} free in {folder}; {' and '.join(map(str, missing))} will take {size(needed)}",
            "make room there, or give another model.folder",
        )
    else:
        yield ok("model folder", f"{size(free)} free in {folder}")
