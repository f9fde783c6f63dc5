"""Train a recipe; without recipe=NAME, tiny_cpu.

slime-swe train recipe=tiny_cpu run.name=first optimizer.lr=3e-4
slime-swe train run.name=first --resume
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.args import to_args
from launch.choice import DEFAULT_RECIPE, add_recipe_arguments, split_recipe, value_of
from launch.config import resolve
from launch.extras import EMBEDDED, require
from launch.output import print_json
from launch.progress import make_progress
from launch.runs import RECIPE_FILE, create_run, find_run, require_same, with_name
from launch.summary import print_summary
from recipes.base import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run that run.name names")


def run(options: argparse.Namespace) -> int:
    require(*EMBEDDED)
    recipe, folder = _continued(options.overrides) if options.resume else _started(options.overrides)
    from embedded.loop import train  # torch takes seconds to import; the other commands don't need it

    args = to_args(recipe, folder, resume=options.resume)
    try:
        with make_progress(recipe, folder) as progress:
            summary = train(args, progress)
    except KeyboardInterrupt:
        _say_how_to_resume(recipe)
        raise
    if options.json:
        print_json(summary)
    else:
        print_summary(summary, folder)
    return 0


def _started(words: list[str]) -> tuple[Recipe, Path]:
    name, overrides = split_recipe(words)
    recipe = with_name(resolve(name or DEFAULT_RECIPE, overrides))
    args = to_args(recipe, Path())
    from launch.preflight import check_args  # torch takes seconds to import

    check_args(args)  # before a folder is made that would be in the way of the corrected command
    return recipe, create_run(recipe)


def _continued(words: list[str]) -> tuple[Recipe, Path]:
    name, overrides = split_recipe(words)
    folder = find_run(value_of("run.name", overrides, ""), value_of("run.dir", overrides, "runs"))
    recipe = resolve(name or str(folder / RECIPE_FILE), overrides)
    require_same(recipe, folder)
    return recipe, folder


def _say_how_to_resume(recipe: Recipe) -> None:
    where = "" if recipe.run.dir == "runs" else f" run.dir={recipe.run.dir}"
    print(f"\nTo go on: slime-swe train run.name={recipe.run.name}{where} --resume", file=sys.stderr)
