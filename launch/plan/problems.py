"""Find what keeps a recipe from running, and which changes cure it: each one is applied before it is advised.

Each problem has a size. A single change is advised where it makes one problem smaller and no other larger. A search
over up to `DEPTH` changes finds what makes the whole recipe run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

from slime_swe.launch.config import with_value
from slime_swe.launch.engines import engine_of
from slime_swe.launch.plan import GIB, Assumptions, Budget, TaskImages, serving
from slime_swe.launch.plan.memory import budgets, recorded
from slime_swe.launch.plan.serving import cache_tokens, sglang_engine
from slime_swe.launch.plan.training import layout_of
from slime_swe.launch.warm_start import unfit
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import Violation, broken_rules, lookup, wrong_fields
from slime_swe.recipes.gpus import GPUS

DEPTH = 4  # changes at once
WIDTH = 24  # unfinished candidates that go on to the next change
ILLEGAL = 10.0  # a broken rule counts more than bytes, which mean nothing where the layout is no layout
SIZES = (1, 2, 4, 8)
TURN_TO = {
    "optimizer states": "optimizer.cpu_offload",
    "activations": "parallel.recompute",
    "logits": "parallel.max_tokens_per_gpu",
    "one layer's backward pass": "parallel.max_tokens_per_gpu",
}
"""Largest component of a trainer that does not fit -> the field to look at; of any other it is parallel.tp."""
OF_A_NODE = {
    "sandboxes": "lower rollout.sandbox_concurrency",
    "routes": "lower rollout.batch_size, or set algorithm.routing_replay=none",
    "optimizer states": "take more nodes, which share out the optimizer's states",
}
"""The same of a machine -> what to do."""
OF_A_DISK = {
    "task images": "take a part of the tasks (data.train=['SET?part=0-0.5']), or set rollout.keep_disk_free",
    "checkpoints": "lower run.keep_checkpoints",
    "exports": "lower run.keep_exports",
}
"""The same of its disk."""

Problems = dict[str, tuple[float, Violation]]  # what is wrong -> how much, and in words


def problems_of(
    recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...], wrong: Sequence[Violation] = ()
) -> Problems:
    """Return everything that is wrong; empty for a recipe that runs. Where single fields are `wrong` it is these alone.
    images: those of `task_images`, which no change that is tried here alters."""
    engine = engine_of(recipe)
    broken = [*(wrong or broken_rules(recipe, engine.violations))]
    if not wrong and (episodes := recorded(recipe)):
        broken += unfit(engine, recipe, episodes, broken)
    found = {each.message: (ILLEGAL, each) for each in broken}
    counts = engine.on_gpus and not wrong and _divides(recipe)
    return found | overruns(recipe, budgets(recipe, assumed, images)) if counts else found


def is_countable(recipe: Recipe) -> bool:
    """Say whether fields have allowed values and sizes divide, so that bytes and seconds mean something."""
    return not wrong_fields(recipe) and (_divides(recipe) or not engine_of(recipe).on_gpus)


def _divides(recipe: Recipe) -> bool:
    return recipe.cluster.gpu in GPUS and layout_of(recipe).is_whole(
        len(recipe.model.shape.layers), experts=bool(recipe.model.shape.experts)
    )


def overruns(recipe: Recipe, budgets: tuple[Budget, ...]) -> Problems:
    """Return one problem for each budget that does not fit, and one for a cache that can't hold an episode."""
    found: Problems = {}
    for budget in budgets:
        name = budget.name.partition(",")[0]
        if not budget.fits:
            found[name] = (1 + budget.excess / budget.capacity, _overrun(name, recipe, budget))
        if name == "serving" and (short := 1 - cache_tokens(recipe) / recipe.rollout.max_context) > 0:
            found["cache"] = (1 + short, _cache(recipe, budget))
    return found


def _overrun(name: str, recipe: Recipe, budget: Budget) -> Violation:
    cluster, serve, largest = recipe.cluster, recipe.serving, budget.largest.name
    least = ceil(budget.bytes / GIB / (1 - budget.margin))
    match name:
        case "training":
            key = TURN_TO.get(largest, "parallel.tp")
            if key == "parallel.recompute" and recipe.parallel.recompute == "full":
                key = "parallel.max_tokens_per_gpu"
            what, fix = f"the trainer does not fit a {cluster.gpu}", "take GPUs with more memory, or more nodes"
        case "serving":
            rest = sum(part.bytes for part in budget.components if part.name not in ("weights", "KV cache"))
            most = max(int(100 * (1 - budget.margin - rest / budget.capacity)), 0)  # what leaves room for the rest
            key, fix = "serving.mem_fraction", f"use at most {most / 100:.2f}"
            what = f"{key}={serve.mem_fraction:g} leaves the server too little"
        case "weight synchronisation":
            key, fix = "serving.gpus_per_engine", "raise it"
            what = f"{key}={serve.gpus_per_engine} leaves no room for new weights"
        case "machine":  # what offloaded states and sandboxes take of a node
            key, what = "cluster.memory_per_node", f"cluster.memory_per_node={cluster.memory_per_node} is too little"
            fix = f"give at least {least} GiB, or {OF_A_NODE.get(largest, 'take machines with more')}"
        case _:
            key, what = "cluster.disk_per_node", f"cluster.disk_per_node={cluster.disk_per_node} is too little"
            fix = f"give at least {least} GiB, or {OF_A_DISK.get(largest, 'take machines with more')}"
    return Violation(key, f"{what}: {_why(budget)}", fix)


def _cache(recipe: Recipe, budget: Budget) -> Violation:
    held, most, fraction = cache_tokens(recipe), recipe.rollout.max_context, recipe.serving.mem_fraction
    weights = serving.weight_bytes(recipe.model.shape, sglang_engine(recipe)) / GIB
    return Violation(
        "serving.mem_fraction" if fraction < 0.8 else "serving.gpus_per_engine",
        f"an episode of rollout.max_context={most} tokens does not fit an engine's KV cache of {held}: "
        f"serving.mem_fraction={fraction:g} of {budget.capacity / GIB:.1f} GiB less {weights:.1f} GiB of weights",
        "lower rollout.max_context",
    )


def _why(budget: Budget) -> str:
    largest = budget.largest
    detail = f" ({largest.detail})" if largest.detail else ""
    kept = f" ({budget.margin:.0%} is kept free)" if budget.margin and not budget.fits else ""
    return f"{budget}{kept}, most of it {largest.name} with {largest.bytes / GIB:.1f}{detail}"


@dataclass(frozen=True)
class Candidate:
    """A recipe with some of its fields changed."""

    edits: Mapping[str, Any]
    recipe: Recipe
    problems: Problems
    distance: float

    @property
    def rank(self) -> tuple[float, float]:
        """The sum of the problems' sizes, 0 where the recipe runs; then the distance from the recipe that was given."""
        return sum(severity for severity, _ in self.problems.values()), self.distance

    @property
    def overrides(self) -> tuple[str, ...]:
        """The edits, written for the command line."""
        values = {key: json.dumps(value).strip('"') for key, value in self.edits.items()}
        return tuple(f"{key}={values[key]}" for key in MOVES if key in values)


def checked_advice(recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...]) -> tuple[Violation, ...]:
    """Return a recipe's problems; the fix of what the search could change names single changes that were applied."""
    start = Candidate({}, recipe, problems_of(recipe, assumed, images, wrong_fields(recipe)), 0.0)
    if not start.problems or not engine_of(recipe).on_gpus or not is_countable(recipe):
        return tuple(problem for _, problem in start.problems.values())
    tried = _changed([start], recipe, assumed, images)
    return tuple(_advised(name, start.problems, tried) for name in start.problems)


def _advised(name: str, before: Problems, tried: list[Candidate]) -> Violation:
    severity, problem = before[name]
    better = [one for one in tried if _harmless(before, one.problems) and _severity(one.problems, name) < severity]
    cures = [one for one in better if name not in one.problems]
    nearest: dict[str, str] = {}
    for candidate in sorted(cures or better, key=lambda one: one.distance):
        nearest.setdefault(next(iter(candidate.edits)), candidate.overrides[0])
    choices = " or ".join([*nearest.values()][:3])
    movable = problem.field in MOVES
    if cures:
        return dataclasses.replace(problem, fix=f"set {choices}" if movable else f"{problem.fix}, or set {choices}")
    if better and movable:
        return dataclasses.replace(problem, fix=f"{choices} makes it less; no single change is enough")
    return dataclasses.replace(problem, fix="no single change cures it without harm elsewhere") if movable else problem


def _harmless(before: Problems, after: Problems) -> bool:
    return all(severity <= _severity(before, name) for name, (severity, _) in after.items())


def _severity(problems: Problems, name: str) -> float:
    return problems[name][0] if name in problems else 0.0


def nearest(recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...], limit: int) -> list[Candidate]:
    """Find up to `limit` candidates that run, fewest changes first, then the smallest ones, one for the same fields.

    All single changes are tried; of those that don't suffice, the most promising ones get a second, and so on. Where
    nothing runs it is the one candidate that comes nearest to it; empty where none is better than the recipe is, where
    the recipe runs, and where it has fields with values that are not allowed.
    """
    if not engine_of(recipe).on_gpus or wrong_fields(recipe):
        return []
    start = Candidate({}, recipe, problems_of(recipe, assumed, images), 0.0)
    if not start.problems:
        return []
    best, beam = start, [start]
    for _ in range(DEPTH):
        tried = sorted(_changed(beam, recipe, assumed, images), key=lambda one: one.rank)
        found = {frozenset(one.edits): one for one in reversed(tried) if not one.problems}
        if found:
            return sorted(found.values(), key=lambda one: one.rank)[:limit]
        best = min((best, *tried[:1]), key=lambda one: one.rank)
        beam = tried[:WIDTH]
    return [best] if best is not start else []


def _changed(
    candidates: list[Candidate], start: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...]
) -> list[Candidate]:
    """Change one more field, to every value that it may take instead; the same changes in another order are one."""
    found: dict[frozenset[tuple[str, Any]], Candidate] = {}
    for old in candidates:
        for key, value in _moves(old):
            edits = {**old.edits, key: value}
            if (name := frozenset(edits.items())) not in found:
                recipe, step = with_value(old.recipe, key, value), _step(key, lookup(start, key), value)
                found[name] = Candidate(edits, recipe, problems_of(recipe, assumed, images), old.distance + step)
    return [*found.values()]


def _moves(candidate: Candidate) -> Iterator[tuple[str, Any]]:
    """Yield every value that a field not changed yet may take instead."""
    for key, values in MOVES.items():
        if key not in candidate.edits:
            now = lookup(candidate.recipe, key)
            yield from ((key, value) for value in dict.fromkeys(values(candidate.recipe)) if value != now)


def _step(key: str, old: Any, new: Any) -> float:
    """Return a change's size: doublings, tenths of a share, 1 for a switch; machines and a shorter context are dear."""
    if key in ("cluster.nodes", "rollout.max_context"):
        return 3 * abs(log2(new / max(old, 1)))
    if key == "serving.mem_fraction":
        return float(abs(new - old) * 10)
    if isinstance(old, int) and not isinstance(old, bool):
        return abs(log2(new / max(old, 1)))
    return 1.0


def _expert_sizes(recipe: Recipe) -> tuple[int, ...]:
    return (*SIZES, 16, 32) if recipe.model.shape.experts else (1,)


def _budgets_of_tokens(recipe: Recipe) -> Iterator[int]:
    """Yield half of the tokens, double, and what just holds an episode."""
    tokens, context = recipe.parallel.max_tokens_per_gpu, recipe.rollout.max_context
    yield from (max(tokens // 2, 1), 2 * tokens, *(ceil(context / cp) for cp in SIZES))


def _contexts(recipe: Recipe) -> tuple[int, ...]:
    """Return the context that the model was made for, where more is asked of it."""
    most = recipe.model.shape.max_context
    return (most,) if recipe.rollout.max_context > most else ()


MOVES: dict[str, Callable[[Recipe], Any]] = {
    "rollout.max_context": _contexts,
    "parallel.tp": lambda recipe: SIZES,
    "parallel.pp": lambda recipe: SIZES,
    "parallel.cp": lambda recipe: SIZES,
    "parallel.ep": _expert_sizes,
    "parallel.etp": lambda recipe: (1, 2, 4) if recipe.model.shape.experts else (1,),
    "parallel.recompute": lambda recipe: ("selective", "full"),
    "parallel.max_tokens_per_gpu": _budgets_of_tokens,
    "optimizer.cpu_offload": lambda recipe: (True, False),
    "serving.mem_fraction": lambda recipe: (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85),
    "serving.gpus_per_engine": lambda recipe: SIZES,
    "serving.ep": _expert_sizes,
    "cluster.nodes": lambda recipe: (2 * recipe.cluster.nodes, 4 * recipe.cluster.nodes),
}
