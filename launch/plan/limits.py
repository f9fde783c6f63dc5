"""Budgets that are overrun -> what is wrong, which field to turn to, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from launch.plan import serving
from launch.plan.formulae import GIB
from launch.plan.memory import cache_tokens, engine_of
from launch.plan.result import Budget
from recipes.base import Recipe
from recipes.violation import Violation

TURN_TO = {
    "weights": ("parallel.tp", "raise parallel.tp or parallel.pp (parallel.ep with experts), or take more nodes"),
    "gradients": ("parallel.tp", "raise parallel.tp or parallel.pp (parallel.ep with experts), or take more nodes"),
    "optimizer states": ("optimizer.cpu_offload", "set optimizer.cpu_offload=true, or take more nodes"),
    "activations": (
        "parallel.recompute",
        "recompute them (parallel.recompute=full), or lower parallel.max_tokens_per_gpu",
    ),
    "logits": ("parallel.max_tokens_per_gpu", "lower parallel.max_tokens_per_gpu, and raise parallel.cp with it"),
    "one layer's backward pass": (
        "parallel.max_tokens_per_gpu",
        "lower parallel.max_tokens_per_gpu, and raise parallel.cp with it",
    ),
}
"""Largest component of a trainer that does not fit -> the field, and the advice."""


def overruns(recipe: Recipe, budgets: tuple[Budget, ...]) -> Iterator[Violation]:
    """One violation for each budget that does not fit, and one for a cache that can't hold an episode."""
    by_name = {budget.name.partition(",")[0]: budget for budget in budgets}
    over = {name: budget for name, budget in by_name.items() if not budget.fits}
    if "training" in over:
        yield _training(recipe, over["training"])
    if "serving" in by_name:
        yield from _serving(recipe, by_name["serving"])
    if "weight synchronisation" in over and "training" not in over:  # said only where nothing else explains it
        yield _synchronising(recipe, over["weight synchronisation"])
    if "machine" in over:
        yield _machine(recipe, over["machine"])
    if "disk" in over:
        yield _disk(recipe, over["disk"])


def _training(recipe: Recipe, budget: Budget) -> Violation:
    key, advice = TURN_TO.get(budget.largest.name, TURN_TO["weights"])
    if key == "parallel.recompute" and recipe.parallel.recompute == "full":
        key, advice = TURN_TO["logits"]
    return Violation(key, f"the trainer does not fit a {recipe.cluster.gpu}: {_why(budget)}", advice)


def _serving(recipe: Recipe, budget: Budget) -> Iterator[Violation]:
    held, most = cache_tokens(recipe), recipe.rollout.max_context
    copies, fraction = engine_of(recipe), recipe.serving.mem_fraction
    if held < most:
        weights = serving.weight_bytes(recipe.model.architecture, copies) / GIB
        yield Violation(
            "serving.mem_fraction" if fraction < 0.8 else "serving.gpus_per_engine",
            f"an episode of rollout.max_context={most} tokens does not fit an engine's KV cache of {held}: "
            f"serving.mem_fraction={fraction:g} of {budget.capacity / GIB:.1f} GiB less {weights:.1f} GiB of weights",
            "raise serving.mem_fraction or serving.gpus_per_engine, or lower rollout.max_context",
        )
    if not budget.fits:
        yield Violation(
            "serving.mem_fraction",
            f"serving.mem_fraction={fraction:g} leaves the server too little: {_why(budget)}",
            f"use at most {_fraction_that_fits(budget):.2f}",
        )


def _fraction_that_fits(budget: Budget) -> float:
    """The static share that leaves room for what is neither weights nor cache, rounded down to a hundredth."""
    rest = sum(part.bytes for part in budget.components if part.name not in ("weights", "KV cache"))
    return max(int(100 * (1 - budget.margin - rest / budget.capacity)) / 100, 0.0)


def _synchronising(recipe: Recipe, budget: Budget) -> Violation:
    given = f"serving.gpus_per_engine={recipe.serving.gpus_per_engine}"
    return Violation("serving.gpus_per_engine", f"{given} leaves no room for new weights: {_why(budget)}", "raise it")


def _machine(recipe: Recipe, budget: Budget) -> Violation:
    """What offloaded states and sandboxes take of a node."""
    advice = {
        "sandboxes": "lower rollout.sandbox_concurrency",
        "optimizer states": "take more nodes, which share out the optimizer's states",
    }.get(budget.largest.name, "take machines with more")
    given = f"cluster.memory_per_node={recipe.cluster.memory_per_node}"
    return Violation(
        "cluster.memory_per_node",
        f"{given} is too little: {_why(budget)}",
        f"give at least {ceil(budget.bytes / GIB / (1 - budget.margin))} GiB, or {advice}",
    )


def _disk(recipe: Recipe, budget: Budget) -> Violation:
    return Violation(
        "cluster.disk_per_node",
        f"cluster.disk_per_node={recipe.cluster.disk_per_node} is too little: {_why(budget)}",
        f"give at least {ceil(budget.bytes / GIB)} GiB, or lower rollout.batch_size",
    )


def _why(budget: Budget) -> str:
    largest = budget.largest
    detail = f" ({largest.detail})" if largest.detail else ""
    kept = f" ({budget.margin:.0%} is kept free)" if budget.margin and not budget.fits else ""
    return f"{budget}{kept}, most of it {largest.name} with {largest.bytes / GIB:.1f}{detail}"
