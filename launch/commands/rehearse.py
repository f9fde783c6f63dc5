"""Rehearse a recipe with the real parts at toy width, before a GPU is paid for: SLiME, Megatron, SGLang, sandboxes.

slime-swe rehearse recipe=qwen25_coder_1_5b
slime-swe rehearse recipe=qwen3_coder_30b_a3b --json
slime-swe rehearse recipe=qwen3_coder_30b_a3b on=gpu     on this node's GPUs, before the checkpoint is loaded
slime-swe rehearse recipe=qwen25_coder_1_5b faults
slime-swe rehearse recipe=qwen25_coder_1_5b faults=engine,rank.save

It runs on a CPU, in the environment that engine=slime_cpu has, and takes minutes; with on=gpu it runs in SLiME's image.
With `faults`, a part of the run fails while something is under way, and what is lost is compared with what the docs
promise (docs/faults.md). The exit code is 0 where every check that could be made passes, and 1 where one fails.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, resolve, taken
from slime_swe.launch.engines import engine_of
from slime_swe.launch.output import print_json
from slime_swe.launch.rehearse import faults
from slime_swe.launch.runs import require_new
from slime_swe.recipes.base import Recipe

FAILED = 1
CPU = "cpu"  # where a rehearsal runs unless on= says otherwise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> int:
    drills, overrides = faults.chosen(options.overrides)
    on, overrides = taken("on", overrides)
    recipe = resolve(DEFAULT_RECIPE, overrides)
    if not engine_of(recipe).rehearsed:
        raise UserError(
            f"recipe={recipe.name} has engine={recipe.engine}: rehearsals are of recipes with engine=slime, on GPUs; "
            "this one runs here as it is, by `slime-swe train`"
        )
    require_new(folder_of(recipe))
    if drills:
        return _drill(recipe, on or CPU, drills, as_json=options.json)
    from slime_swe.launch.rehearse.platforms import platform_of  # torch and Transformers take seconds to import
    from slime_swe.launch.rehearse.rehearsal import document, rehearse, show

    outcome = rehearse(recipe, platform_of(on or CPU), folder_of(recipe))
    if options.json:
        print_json(document(outcome))
    else:
        show(outcome)
    return 0 if outcome.ok else FAILED


def _drill(recipe: Recipe, on: str, drills: list[faults.Drill], *, as_json: bool) -> int:
    from slime_swe.launch.rehearse.faults.drill import play
    from slime_swe.launch.rehearse.faults.outcome import document, show
    from slime_swe.launch.rehearse.platforms import platform_of

    outcomes = list(play(recipe, platform_of(on), folder_of(recipe), drills))
    if as_json:
        print_json(document(outcomes))
    else:
        show(outcomes)
    return 0 if all(outcome.ok for outcome in outcomes) else FAILED


def folder_of(recipe: Recipe) -> Path:
    """Return a folder for this rehearsal below `run.dir`, which a user may remove."""
    when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(recipe.run.dir) / (recipe.run.name or f"rehearsal-{recipe.name}-{when}")
