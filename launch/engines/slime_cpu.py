"""The engine that shows, without a GPU, that what trains on one is what was tested: real SLiME on real Megatron.

SLiME's `train.py` runs with the recipe's own plug-ins; the embedded engine's server is its rollout engine.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from launch.engines.base import Start
from launch.slime.environment import Homes
from launch.slime.job import Job
from launch.slime_cpu.checkouts import require_checkouts
from launch.slime_cpu.render import render
from launch.summary import tell_summary
from recipes.base import Recipe, RecipeError

PACKAGES = ("ray", "sglang", "sglang_router", "tensorboard", "torch", "transformers")
NO_SERVER = "HOST:PORT"  # stands for the server's address, which is not known before it runs


def check(recipe: Recipe, start: Start) -> None:
    """Raise the `ValueError` of what would keep the recipe from running."""
    require_checkouts(os.environ)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise RecipeError(
            f"engine=slime_cpu needs SLiME's own packages, and {', '.join(missing)} is missing: start it by `bash "
            "launch/run_qwen_swe.sh engine=slime_cpu ...`, which makes an environment that has them"
        )
    if recipe.rollout.schedule != "sync":
        raise RecipeError(
            f"rollout.schedule={recipe.rollout.schedule!r}: engine=slime_cpu samples and trains in turns, so "
            "rollout.schedule=sync"
        )
    job(recipe, Path(recipe.run.dir), resume=start.resume)


def run(recipe: Recipe, folder: Path, start: Start) -> int:
    """Train, and print the summary."""
    from launch.slime_cpu.run import train  # torch takes seconds to import

    summary = train(recipe, folder.resolve(), resume=start.resume)
    tell_summary(summary, folder, as_json=start.as_json)
    return 0


def job(recipe: Recipe, folder: Path, *, resume: bool) -> Job:
    """The command that `run` starts once its server says where it is."""
    return render(recipe, folder, NO_SERVER, homes=Homes.find(), resume=resume)
