"""The task sets, the plug-ins and the agent that the recipe names: all that a run would load first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data_sources.arguments import ArgumentError
from data_sources.contamination import ContaminationError
from data_sources.reader import TaskError
from data_sources.registry import RegistryError, load_tasks
from embedded.hooks import HookError, load_function
from launch.doctor.finding import Finding, failure, ok, skipped
from launch.doctor.machine import Machine
from launch.overlap import check_overlap
from recipes.base import Recipe
from recipes.rules.values import lookup
from rollout.resources import agent_opener

PLUG_INS = (
    "rollout.generate",
    "rollout.log",
    "rollout.log_evaluation",
    "reward.function",
    "data.source",
    "algorithm.post_process",
    "algorithm.group_filter",
)


def check_tasks(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Read every task set."""
    sets = [("data.train", spec) for spec in recipe.data.train]
    sets += [(f"data.eval.{name}", spec) for name, spec in recipe.data.eval.items()]
    for key, spec in sets:
        try:
            count = len(load_tasks(spec))
        except (RegistryError, TaskError) as error:
            yield failure("tasks", f"{key}: {error}", f"change {key}; `slime-swe tasks list` says what there is")
        else:
            yield ok("tasks", f"{key}: {count} tasks of {spec}")


def check_contamination(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Whether training shows what is evaluated."""
    try:
        comparison = check_overlap(recipe)
    except ContaminationError as error:
        yield failure("overlap", str(error), "change data.train or data.eval, or allow it by name")
    except (RegistryError, TaskError):
        yield skipped("overlap", "the task sets must be readable first")
    else:
        counts = f"{comparison.trained} training and {comparison.evaluated} evaluation tasks"
        yield ok("overlap", f"{counts} share nothing but the {len(comparison.allowed)} pairs that are allowed")


def check_plug_ins(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Import every function that is named by a dotted path, and what opens the agent."""
    paths = {key: path for key in PLUG_INS if (path := lookup(recipe, key))}
    wrong = [finding for key, path in paths.items() if (finding := _importable(key, path))]
    try:
        agent_opener(recipe.rollout.agent)
    except ArgumentError as error:
        wrong.append(failure("plug-ins", str(error), "change rollout.agent"))
    yield from wrong
    if not wrong:
        yield ok("plug-ins", f"{len(paths)} functions and the agent {recipe.rollout.agent} import")


def _importable(key: str, path: str) -> Finding | None:
    try:
        load_function(path, key)
    except (HookError, ImportError, SyntaxError) as error:
        return failure("plug-ins", str(error), f"change {key}, or start slime-swe in the folder that holds the module")
    return None


def check_embedded(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """What the embedded engine itself refuses before it starts."""
    from launch.args import to_args
    from launch.preflight import check_args  # torch takes seconds to import

    check_args(to_args(recipe, Path(recipe.run.dir)))
    yield ok("engine", "the embedded engine takes every setting")
