"""The checkpoint in Megatron's `torch_dist` format, beside the one in Hugging Face format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.args import checkpoint_path
from launch.doctor.conversion import conversion
from launch.doctor.finding import Finding, failure, ok
from launch.doctor.machine import Machine
from launch.slime.places import TRACKER
from recipes.base import Recipe

METADATA = ".metadata"  # written last, by torch.distributed.checkpoint


def check_converted(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The policy that training starts from, and the KL penalty's reference."""
    folder = converted_folder(recipe)
    missing = unfinished(folder)
    if missing:
        yield failure("converted", f"{folder}: {missing}", "convert it, on a machine with GPUs", conversion(recipe))
    else:
        yield ok("converted", str(folder))


def unfinished(folder: Path) -> str:
    """What a conversion has left out; empty where it is complete."""
    try:
        name = (folder / TRACKER).read_text(encoding="ascii").strip()
    except OSError:
        return f"no {TRACKER} there" if folder.is_dir() else "not there"
    inner = folder / (name if name == "release" else f"iter_{int(name):07d}" if name.isdigit() else "?")
    if not (inner / METADATA).is_file():
        return f"{TRACKER} says {name!r}, but {inner.name}/{METADATA} is missing: the conversion did not finish"
    return ""


def converted_folder(recipe: Recipe) -> Path:
    """Beside the one in Hugging Face format."""
    return Path(f"{checkpoint_path(recipe.model.checkpoint, recipe.model.folder)}_torch_dist")
