"""The command that converts a checkpoint for Megatron: SLiME's own `tools/convert_hf_to_torch_dist.py`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from launch.args import checkpoint_path
from launch.slime.architecture import model_section
from launch.slime.argv import words
from launch.slime.environment import Homes
from launch.slime.manifest import split
from recipes.base import Recipe

SCRIPT = "tools/convert_hf_to_torch_dist.py"
ONE_GPU = 20e9  # bytes of weights that one GPU converts with room to spare
WIDTH = 98


def conversion(recipe: Recipe) -> str:
    """Lines for a shell. Several processes share the layers by pipeline, so that each holds a part of them."""
    model, homes = recipe.model, Homes.find()
    folder = checkpoint_path(model.checkpoint, model.folder)
    processes = 1 if 2 * model.architecture.parameters <= ONE_GPU else max(1, recipe.cluster.gpus_per_node)
    shape = words(model_section(model.architecture, recipe.parallel.tp))
    flags = [shlex.join([name, *values]) for name, values in split(shape)]
    return continued(
        f"cd {shlex.quote(str(homes.slime))} &&",
        f"PYTHONPATH={shlex.quote(str(homes.megatron))}",
        f"torchrun --nproc-per-node={processes} {SCRIPT}",
        *flags,
        shlex.join(["--hf-checkpoint", str(folder)]),
        shlex.join(["--save", f"{folder}_torch_dist"]),
    )


def continued(first: str, *parts: str) -> str:
    """The parts of a command on lines of `WIDTH` columns, as far as no part is longer."""
    return " \\\n  ".join(_filled(first, parts))


def _filled(first: str, parts: Iterable[str]) -> Iterable[str]:
    line = first
    for part in parts:
        if len(line) + len(part) + 1 > WIDTH - 4:  # the indentation before it, the backslash after it
            yield line
            line = part
        else:
            line = f"{line} {part}"
    yield line
