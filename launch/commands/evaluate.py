"""Evaluate a run's newest checkpoint, any other, or a model at an OpenAI-compatible endpoint, at temperature 1.

A checkpoint is served by the embedded server, or by the running SGLang that serving.router_ip names.

slime-swe evaluate first                                     a run's newest checkpoint, on the recipe's sets
slime-swe evaluate runs/first/checkpoints/rollout_16
slime-swe evaluate path/to/model --tasks my=path/to/tasks.jsonl --samples 4
slime-swe evaluate first --output kept && slime-swe episodes kept --list
slime-swe evaluate first serving.router_ip=127.0.0.1 serving.router_port=30000 --output verified

slime-swe evaluate http://localhost:8000/v1 --model Qwen/Qwen3-Coder-30B-A3B-Instruct sandbox=local \\
    --tasks heldout=synthetic:heldout --samples 4 --concurrency 32 --output kept
slime-swe evaluate https://api.example.com/v1 --model large --key-variable EXAMPLE_API_KEY agent=mini_swe_agent \\
    --tasks verified=swebench:verified --price in=0.3,out=1.2,cached=0.03 --budget dollars=20 --output verified
slime-swe evaluate https://api.example.com/v1 ... --output verified --resume     the same words: goes on

docs/evaluate.md says what is counted, and how. `slime-swe eval` is the same. The exit code is 1 where the budget was
spent before all episodes were played.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.config import add_recipe_arguments, with_value
from slime_swe.launch.doctor.served import servers_of
from slime_swe.launch.engines import BY_EMBEDDED, require_legal
from slime_swe.launch.evaluation import (
    INCOMPLETE,
    Evaluation,
    begin,
    in_words,
    known_episodes,
    limits_of,
    output,
    records_of,
)
from slime_swe.launch.evaluation.target import (
    PORT,
    Endpoint,
    endpoint_of,
    recipe_at,
    recipe_for,
    require_serves,
    start_command,
)
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.model import checkpoint_folder
from slime_swe.launch.output import print_json, rate, table_console
from slime_swe.launch.preflight import require_plug_ins
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.endpoint.replies import SPENDING, Budget, Prices, Spending, Usage
from slime_swe.rollout.metrics import evaluation_metrics
from slime_swe.rollout.records import Record, trajectories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="RUN|MODEL|URL",
        help="a run's name or folder, one of its checkpoints, a model's folder, or the base of an API, as https://HOST/v1",
    )
    add_recipe_arguments(parser)
    parser.add_argument("--model", metavar="NAME", help="what an endpoint, or the running SGLang, calls it")
    parser.add_argument("--key-variable", metavar="VARIABLE", help="the environment's variable that holds its key")
    parser.add_argument("--tasks", action="append", metavar="NAME=SET", help="instead of the recipe's evaluation sets")
    parser.add_argument("--samples", type=int, metavar="N", help="episodes of each task")
    parser.add_argument("--concurrency", type=int, metavar="N", help="episodes at once, at most")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep the trajectories in this new folder")
    parser.add_argument("--resume", action="store_true", help="go on with the evaluation in --output")
    parser.add_argument("--price", metavar="in=X,out=Y", help="dollars for a million tokens; cached=Z for cached ones")
    parser.add_argument("--budget", metavar="dollars=X,tokens=Y", help="begin no episode after so much was spent")


def run(options: argparse.Namespace) -> int:
    from slime_swe.launch.evaluation import play  # agents and sandboxes take long to import
    from slime_swe.rollout.loop_scope import require_room_for

    endpoint = endpoint_of(options.target, options.model, options.key_variable)
    recipe = _recipe(options, endpoint)
    require_room_for(recipe.rollout.agent, recipe.rollout.sandbox)
    prices = prices_of(options.price)
    budget = budget_of(options.budget, prices)
    sets = {name: load_tasks(spec) for name, spec in recipe.data.evaluation_sets.items()}
    episodes = recipe.data.eval_samples_per_task * sum(map(len, sets.values()))
    evaluation = Evaluation(recipe.model.checkpoint, endpoint.url if endpoint else "", episodes, left=episodes)
    if endpoint is not None:
        asyncio.run(play.require_usable(endpoint))
    elif recipe.serving.router_ip:
        (url,) = servers_of(recipe).values()
        asyncio.run(require_serves(url, Path(recipe.model.checkpoint), options.model))
    with _folder(options, recipe, evaluation) as folder:
        spending = Spending.of(folder / SPENDING, prices, budget) if endpoint else None
        if endpoint is None or spending is None:
            _play(play.evaluate_checkpoint(recipe, folder, sets), options)
        else:
            _play(play.evaluate_endpoint(recipe, folder, sets, endpoint, spending), options)
        left = episodes - sum(len(known_episodes(folder, name)) for name in sets)
        evaluation = msgspec.structs.replace(evaluation, left=left)
        evaluation.write(folder)
        figures = figures_of(folder, list(sets), spending)
    document = _document(recipe, evaluation, figures, spending)
    if options.json:
        print_json(document)
    else:
        show(document, table_console())
    return 0 if document["complete"] else INCOMPLETE


def _recipe(options: argparse.Namespace, endpoint: Endpoint | None) -> Recipe:
    """Return the checked recipe to play; its model is the endpoint's name for it, or else the model's folder.

    Raises `UserError` for options or a recipe that can't be played.
    """
    if endpoint is not None:
        recipe = _with_options(recipe_at(endpoint, options.overrides, options.concurrency), options)
    else:
        for option in ("price", "budget"):
            if getattr(options, option):
                raise UserError(f"--{option} is for endpoints: the tokens of a checkpoint cost nothing")
        recipe = _with_options(recipe_for(options.target, options.overrides), options)
        folder = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
        recipe = with_value(recipe, "model.checkpoint", str(folder))
        if not recipe.serving.router_ip:
            _require_embedded(recipe, options)
    if recipe.rollout.grammar and not recipe.serving.router_ip:
        raise UserError(
            "rollout.grammar: neither the embedded server, which plays checkpoints here, nor an endpoint samples by a "
            "grammar. rollout.grammar='' evaluates without it, and an SGLang at serving.router_ip with it; a run's own "
            "evaluations (run.eval_interval) follow it"
        )
    require_legal(recipe)
    require_plug_ins(recipe)
    return recipe


def _require_embedded(recipe: Recipe, options: argparse.Namespace) -> None:
    """Raise `UserError` where the embedded server does not run the model, with the commands that have SGLang do it."""
    require(*EMBEDDED)
    if options.model:
        raise UserError(
            f"--model is of an endpoint or an SGLang, and {options.target} is none: give its address, https://HOST/v1, "
            "or name a running SGLang by serving.router_ip and serving.router_port"
        )
    kind = recipe.model.config.get("model_type")
    if kind not in {value for key, value, _ in BY_EMBEDDED if key == "model.config.model_type"}:
        raise UserError(
            f"{options.target} is a model of type {kind}, which the embedded server does not run. On a machine with "
            f"GPUs:\n  {start_command(recipe)}\n"
            f"  slime-swe evaluate {options.target} serving.router_ip=127.0.0.1 serving.router_port={PORT}"
        )


def _with_options(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    if options.resume and not options.output:
        raise UserError("--resume needs --output, the folder of the evaluation that is to go on")
    if options.tasks:
        sets = dict(text.split("=", 1) if "=" in text else (text, "") for text in options.tasks)
        for name, spec in sets.items():
            if not (name and spec):
                raise UserError(f"--tasks {name!r} must be NAME=SET, e.g. heldout=synthetic:heldout")
        recipe = with_value(recipe, "data.eval", sets)
    if options.samples is not None:
        recipe = with_value(recipe, "data.eval_samples_per_task", options.samples)
    if options.concurrency is not None:
        recipe = with_value(recipe, "serving.concurrency", options.concurrency)
    if not recipe.data.eval:
        raise UserError("the recipe names no evaluation set: give --tasks NAME=SET, e.g. heldout=synthetic:heldout")
    return recipe


# Options that hold several numbers: prices and a budget.
_FACTORS = {"k": 1e3, "M": 1e6}


def prices_of(text: str | None) -> Prices | None:
    """Parse `in=0.3,out=1.2[,cached=0.03]`; without `cached`, cached tokens cost what `in` says. Raises `UserError`."""
    if text is None:
        return None
    found = _numbers("--price", text, ("in", "out", "cached"))
    for name in ("in", "out"):
        if name not in found:
            raise UserError(
                f"--price {text}: {name}= is missing: give dollars for a million tokens, e.g. in=0.3,out=1.2"
            )
    return Prices(found["in"], found["out"], found.get("cached", found["in"]))


def budget_of(text: str | None, prices: Prices | None) -> Budget:
    """Parse `dollars=5`, `tokens=2M` or both. Raises `UserError`, also for dollars without prices."""
    found = _numbers("--budget", text, ("dollars", "tokens")) if text is not None else {}
    if "dollars" in found and prices is None:
        raise UserError("--budget dollars= needs --price in=DOLLARS,out=DOLLARS for a million tokens each")
    return Budget(found.get("dollars"), found.get("tokens"))


def _numbers(option: str, text: str, names: Sequence[str]) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in names or not equals or name in found:
            example = ",".join(f"{each}=NUMBER" for each in names)
            raise UserError(f"{option} {text}: give {example}, or some of these")
        found[name] = _number(option, part.strip(), value)
    return found


def _number(option: str, part: str, value: str) -> float:
    factor = _FACTORS.get(value[-1:], 1.0)
    try:
        number = float(value.rstrip("kM")) * factor
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{option} {part}: it must be a number of at least 0, such as 0.3, 500k or 2M")
    return number


@contextmanager
def _folder(options: argparse.Namespace, recipe: Recipe, evaluation: Evaluation) -> Iterator[Path]:
    """Yield the folder to play into: `--output`, or a temporary folder that is removed at the end."""
    if options.output:
        with output(options.output, recipe, evaluation, resume=options.resume):
            yield options.output
        return
    with tempfile.TemporaryDirectory(prefix="slime-swe-eval-") as temporary:
        begin(Path(temporary), recipe, evaluation)
        yield Path(temporary)


def _play(evaluating: Coroutine[Any, Any, None], options: argparse.Namespace) -> None:
    try:
        asyncio.run(evaluating)
    except (KeyboardInterrupt, UserError, InfrastructureError):
        if options.output:
            print(f"what was played is in {options.output}: the same words with --resume go on", file=sys.stderr)
        raise


# The figures of the sets, from their records: what was solved, and what it used and cost.
def figures_of(folder: Path, names: Sequence[str], spending: Spending | None) -> dict[str, dict[str, Any]]:
    """Return the figures of each set, from what the journal has of it."""
    prices = spending.prices if spending else None
    records = {name: records_of(folder, name) for name in names}
    return {name: {**evaluation_metrics(found), **costs(found, prices)} for name, found in records.items()}


def costs(records: Sequence[Record], prices: Prices | None) -> dict[str, Any]:
    """Count tokens and, by the prices, dollars: for the set, an episode, and a task that an episode has solved. The
    result is empty where no episode says what it used.

    Episodes that infrastructure broke are paid for like others, and their cost is in all of these. Earlier attempts at
    an episode are not: `Spending` counts them too.
    """
    episodes = trajectories(records)
    used = sum((_used(segments[0]) for segments in episodes), Usage())
    if not used.total:
        return {}
    solved = {segments[0].task for segments in episodes if segments[0].solved}
    found: dict[str, Any] = {
        "tokens": as_json(used),
        "tokens_per_episode": used.total / len(episodes),
    }
    if prices is not None:
        dollars = prices.dollars(used)
        found |= {
            "dollars": dollars,
            "dollars_per_episode": dollars / len(episodes),
            "dollars_per_solved_task": dollars / len(solved) if solved else None,
        }
    return found


def as_json(used: Usage) -> dict[str, int]:
    return {"prompt": used.prompt, "cached": used.cached, "completion": used.completion}


def _used(record: Record) -> Usage:
    if record.episode is None:
        return Usage()
    counters = record.episode.counters
    return Usage(counters.prompt_tokens, counters.completion_tokens, counters.cached_tokens)


def _document(
    recipe: Recipe, evaluation: Evaluation, figures: dict[str, Any], spending: Spending | None
) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    document: dict[str, Any] = {
        "model": evaluation.model,
        "agent": recipe.rollout.agent,
        **limits_of(recipe),
        "seed": recipe.run.seed,
        "episodes": evaluation.episodes,
        "left": evaluation.left,
        "complete": not evaluation.left,
        "sets": figures,
    }
    if recipe.serving.router_ip and spending is None:
        document |= {"server": next(iter(servers_of(recipe)))}
    if spending is not None:
        document |= {"endpoint": evaluation.endpoint, "spent": as_json(spending.used) | {"dollars": spending.dollars}}
    return document


# The figures as tables.
Results = Mapping[str, Mapping[str, Any]]


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print an evaluation's tables. document: as `--json` prints it."""
    results = document["sets"]
    console.print(_solved(results, complete=document["complete"]))
    console.print(f"Episodes of {in_words(document)}", highlight=False)
    if any("pass_at_k" in figures for figures in results.values()):
        console.print(_passes(results))
    for name, figures in results.items():
        for kind, own in figures.get("of_kind", {}).items():
            console.print(_of_kind(name, kind, own))
    if any("tokens" in figures for figures in results.values()):
        console.print(_costs(results))
    spent = document.get("spent")
    if spent is not None:
        dollars = "" if spent["dollars"] is None else f", ${spent['dollars']:.2f}"
        console.print(f"All calls together: {spent['prompt'] + spent['completion']:,} tokens{dollars}", highlight=False)
    if not document["complete"]:
        console.print(
            f"INCOMPLETE: the budget is spent, and {document['left']} of {document['episodes']} episodes were not "
            "played. These are the figures of the tasks that came first; --resume with a larger --budget goes on",
            highlight=False,
        )


def _solved(results: Results, *, complete: bool) -> Table:
    title = "Solve rate, with 95 % intervals" if complete else "INCOMPLETE: solve rate of what was played"
    table = _table(title, "", "tasks", "episodes", "broken", "solved", "turns", "edits")
    for name, figures in results.items():
        counts = [str(figures[key]) for key in ("tasks", "episodes", "infrastructure_failures")]
        behaviour = [f"{figures[key]:.2f}" if key in figures else "–" for key in ("turns", "edits")]
        table.add_row(name, *counts, rate(figures["solve_rate"], figures["interval"]), *behaviour)
    return table


def _passes(results: Results) -> Table:
    table = _table("Of k episodes of a task", "", "k", "one solves it (pass@k)", "all solve it (pass^k)")
    for name, figures in results.items():
        for k, share in figures.get("pass_at_k", {}).items():
            table.add_row(name, k, rate(share), rate(figures["pass_hat_k"][k]))
    return table


def _of_kind(name: str, kind: str, figures: Mapping[str, float]) -> Table:
    """Make the table of the figures that only tasks of this kind have."""
    table = _table(f"{name}: {kind}", *figures)
    table.add_row(
        *(f"{value:.0f}" if value == int(value) and value > 1 else f"{value:.3f}" for value in figures.values())
    )
    return table


def _costs(results: Results) -> Table:
    headings = ("", "prompt", "cached", "completion", "tokens/episode", "$/episode", "$/solved task")
    table = _table("Tokens, as the engine counts them", *headings)
    for name, figures in results.items():
        if "tokens" not in figures:
            continue
        counts = [f"{figures['tokens'][kind]:,}" for kind in ("prompt", "cached", "completion")]
        prices = [_dollars(figures.get(key)) for key in ("dollars_per_episode", "dollars_per_solved_task")]
        table.add_row(name, *counts, f"{figures['tokens_per_episode']:,.0f}", *prices)
    return table


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table
