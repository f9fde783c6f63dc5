"""Evaluate a run's newest checkpoint, or a model in Hugging Face format, at temperature 1.

slime-swe eval first
slime-swe eval path/to/model --tasks my=path/to/tasks.jsonl --samples 4
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from launch.args import to_args
from launch.choice import DEFAULT_RECIPE, add_recipe_arguments, split_recipe, value_of
from launch.config import resolve
from launch.extras import EMBEDDED, require
from launch.output import print_json
from launch.runs import RECIPE_FILE, RunError, find_run
from launch.slime.places import Places
from launch.text import rate
from recipes.base import Recipe, RecipeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="RUN|MODEL", help="a run's name or folder, or a folder that holds a model")
    add_recipe_arguments(parser)
    parser.add_argument("--tasks", action="append", metavar="NAME=SET", help="instead of the recipe's evaluation sets")
    parser.add_argument("--samples", type=int, metavar="N", help="episodes of each task")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep the trajectories there")


def run(options: argparse.Namespace) -> int:
    require(*EMBEDDED)
    recipe = _with_options(_recipe(options.target, options.overrides), options)
    recipe.validate()
    with tempfile.TemporaryDirectory(prefix="slime-swe-eval-") as temporary:
        folder = options.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        args = to_args(recipe, folder)
        from launch.evaluation import evaluate_checkpoint  # torch takes seconds to import

        results = asyncio.run(evaluate_checkpoint(args))
    if options.json:
        print_json({"model": args.hf_checkpoint, "seed": recipe.run.seed, "sets": results})
    else:
        Console().print(_table(results))
    return 0


def _recipe(target: str, words: list[str]) -> Recipe:
    """The run's own recipe with its newest weights; or the named one with the model at `target`."""
    name, overrides = split_recipe(words)
    if (Path(target) / "config.json").is_file():
        return resolve(name or DEFAULT_RECIPE, [*overrides, f"model={target}"])
    folder = find_run(target, value_of("run.dir", overrides, "runs"))
    recipe = resolve(name or str(folder / RECIPE_FILE), overrides)
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, checkpoint=str(newest_weights(folder))))


def newest_weights(folder: Path) -> Path:
    """The newest weights in Hugging Face format: the embedded engine's checkpoint, or what SLiME has exported."""
    from embedded.checkpoint import latest

    found = latest(folder / "checkpoints")
    if found is not None:
        return found.model_dir
    exported = [path.parent for path in Places(folder).exports.glob("*/config.json") if path.parent.name.isdigit()]
    if not exported:
        raise RunError(f"{folder} has no checkpoint yet: train it for one rollout at least")
    return max(exported, key=lambda path: int(path.name))


def _with_options(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    data = recipe.data
    if options.tasks:
        data = dataclasses.replace(data, eval=dict(_named(word) for word in options.tasks))
    if options.samples is not None:
        data = dataclasses.replace(data, eval_samples_per_task=options.samples)
    if not data.eval:
        raise RecipeError("the recipe names no evaluation set: give --tasks NAME=SET, e.g. heldout=embedded:heldout")
    return dataclasses.replace(recipe, data=data)


def _named(word: str) -> tuple[str, str]:
    name, equals, spec = word.partition("=")
    if not (name and equals and spec):
        raise RecipeError(f"--tasks {word!r} must be NAME=SET, e.g. heldout=embedded:heldout")
    return name, spec


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Solve rate, with 95 % intervals", title_justify="left", title_style="bold", box=SIMPLE)
    for heading in ("", "tasks", "episodes", "broken", "solved", "turns", "edits"):
        table.add_column(heading, no_wrap=True)
    for name, metrics in results.items():
        counts = [str(metrics[key]) for key in ("tasks", "episodes", "infrastructure_failures")]
        behaviour = [f"{metrics[key]:.2f}" if key in metrics else "–" for key in ("turns", "edits")]
        table.add_row(name, *counts, rate(metrics["solve_rate"], metrics["interval"]), *behaviour)
    return table
