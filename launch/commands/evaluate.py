"""Evaluate a run's newest checkpoint, one of its checkpoints, or a model in Hugging Face format, at temperature 1.

slime-swe eval first
slime-swe eval runs/first/checkpoints/rollout_13
slime-swe eval path/to/model --tasks my=path/to/tasks.jsonl --samples 4
slime-swe eval first --output kept && slime-swe episodes kept --list
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from slime_swe.attempts import ATTEMPTS, attempting, require_ended
from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.launch.args import checkpoint_path, to_args
from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, resolve, save_recipe, value_of, with_value
from slime_swe.launch.engines import require_legal
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.output import print_json, rate, table_console
from slime_swe.launch.preflight import require_plug_ins
from slime_swe.launch.progress import Bar
from slime_swe.launch.runs import RECIPE_FILE, find_run, make_folder
from slime_swe.launch.slime.paths import EXPORTS
from slime_swe.recipes.base import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="RUN|MODEL",
        help="a run's name or folder, one of its checkpoints, or a model's folder",
    )
    add_recipe_arguments(parser)
    parser.add_argument("--tasks", action="append", metavar="NAME=SET", help="instead of the recipe's evaluation sets")
    parser.add_argument("--samples", type=int, metavar="N", help="episodes of each task")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep the trajectories in this new folder")


def run(options: argparse.Namespace) -> int:
    require(*EMBEDDED)
    recipe = _with_options(recipe_for(options.target, options.overrides), options)
    require_legal(recipe)
    require_plug_ins(recipe)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="slime-swe-eval-"))
        folder = options.output or Path(temporary)
        if options.output:
            _make_output(folder)
            stack.enter_context(attempting(folder / ATTEMPTS))
            _save_recipe(recipe, folder)
        args = to_args(recipe, folder)
        results = asyncio.run(evaluate_checkpoint(args))
    if options.json:
        print_json({"model": args.hf_checkpoint, "seed": recipe.run.seed, "sets": results})
    else:
        table_console().print(_table(results))
    return 0


def recipe_for(target: str, given: list[str]) -> Recipe:
    """The run's own recipe with these weights or its newest; or the named one with the model at `target`."""
    model = model_folder(Path(target))
    if model is None:
        folder = find_run(target, value_of("run.dir", given, "runs"))
        return with_value(resolve(str(folder / RECIPE_FILE), given), "model.checkpoint", str(newest_weights(folder)))
    run = next((folder for folder in model.resolve().parents[:3] if (folder / RECIPE_FILE).is_file()), None)
    if run is not None and not value_of("recipe", given, ""):
        return with_value(resolve(str(run / RECIPE_FILE), given), "model.checkpoint", str(model))
    return resolve(DEFAULT_RECIPE, [*given, f"model={model}"])


def model_folder(target: Path) -> Path | None:
    """The folder of the model that a path names itself, or as a checkpoint; None where it names none.

    Raises `UserError` for a folder that is neither a model, nor a checkpoint, nor a run.
    """
    for folder in (target, target / "hf"):
        if (folder / "config.json").is_file():
            return folder
    if "/" in str(target) and target.is_dir() and not (target / RECIPE_FILE).is_file():
        raise UserError(
            f"{target} holds no model (config.json), no checkpoint of one (hf/config.json) and no run ({RECIPE_FILE}); "
            "a run under SLiME keeps its weights in Hugging Face format in exports/"
        )
    return None


def newest_weights(folder: Path) -> Path:
    """The newest weights in Hugging Face format: the embedded engine's checkpoint, or what SLiME has exported."""
    from slime_swe.embedded.checkpoint import latest

    found = latest(folder / "checkpoints")
    if found is not None:
        return found.model_dir
    exported = [path.parent for path in (folder / EXPORTS).glob("*/config.json") if path.parent.name.isdigit()]
    if not exported:
        raise UserError(f"{folder} has no checkpoint yet: train it for one rollout at least")
    return max(exported, key=lambda path: int(path.name))


def _with_options(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    if options.tasks:
        sets = dict(text.split("=", 1) if "=" in text else (text, "") for text in options.tasks)
        for name, spec in sets.items():
            if not (name and spec):
                raise UserError(f"--tasks {name!r} must be NAME=SET, e.g. heldout=synthetic:heldout")
        recipe = with_value(recipe, "data.eval", sets)
    if options.samples is not None:
        recipe = with_value(recipe, "data.eval_samples_per_task", options.samples)
    if not recipe.data.eval:
        raise UserError("the recipe names no evaluation set: give --tasks NAME=SET, e.g. heldout=synthetic:heldout")
    return recipe


def _make_output(folder: Path) -> None:
    """Raises `UserError` where it can't be made, or holds something."""
    if (folder / RECIPE_FILE).exists():
        require_ended(folder / ATTEMPTS)
        raise UserError(f"--output {folder} holds a run or an evaluation already: give a new folder")
    make_folder(folder, "--output")


def _save_recipe(recipe: Recipe, folder: Path) -> None:
    """So that `slime-swe episodes` reads the folder; it names the model."""
    model = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    with writing(folder / RECIPE_FILE):
        save_recipe(with_value(recipe, "model.checkpoint", str(model)), folder / RECIPE_FILE)


async def evaluate_checkpoint(args: Namespace) -> dict[str, dict[str, Any]]:
    """Figures of each set of `args.swe_eval_tasks`; trajectories go to `args.swe_run_dir`.

    Raises `InfrastructureError` where infrastructure broke every episode of a set.
    """
    from slime_swe.embedded.hooks import Hooks
    from slime_swe.embedded.server_process import ServerProcess
    from slime_swe.rollout.evaluation import as_slime, evaluate, load_evaluation_tasks  # torch takes seconds to import
    from slime_swe.rollout.metrics import evaluation_metrics
    from slime_swe.rollout.player import Player

    hooks, sets, results = Hooks.load(args), load_evaluation_tasks(args), {}
    async with ServerProcess.of_run(args, Path(args.swe_run_dir) / "server.log") as server:
        args.sglang_router_ip, args.sglang_router_port = server.host, server.port
        player = Player(args, hooks)
        for name, tasks in sets.items():
            with Bar(f"evaluating {name}", len(tasks) * args.n_samples_per_eval_prompt) as bar:
                samples = await evaluate(player, tasks, bar.show)
            if hooks.log_evaluation is not None:
                hooks.log_evaluation(-1, args, {name: as_slime(samples)}, {})
            results[name] = evaluation_metrics(samples)
    return results


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Solve rate, with 95 % intervals", title_justify="left", title_style="bold", box=SIMPLE)
    for heading in ("", "tasks", "episodes", "broken", "solved", "turns", "edits"):
        table.add_column(heading, no_wrap=True)
    for name, metrics in results.items():
        counts = [str(metrics[key]) for key in ("tasks", "episodes", "infrastructure_failures")]
        behaviour = [f"{metrics[key]:.2f}" if key in metrics else "–" for key in ("turns", "edits")]
        table.add_row(name, *counts, rate(metrics["solve_rate"], metrics["interval"]), *behaviour)
    return table
