"""`make_plan`: a recipe -> whether it is legal, whether it fits, how long a step takes, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator

from launch.model import mismatches
from launch.plan import formulae
from launch.plan.assumptions import Assumptions
from launch.plan.formulae import GIB
from launch.plan.gpus import GPUS
from launch.plan.limits import overruns
from launch.plan.memory import WITHOUT_IMAGES, budgets, cache_tokens, layout_of, sampled_tasks
from launch.plan.result import Budget, Component, Plan, Timing
from launch.plan.timing import time_step, workload_of
from recipes.base import Recipe
from recipes.checks import violations
from recipes.rules.values import RULES, broken
from recipes.violation import Violation

TRAINED_ON_CPU = 16  # bytes a parameter without GPUs: fp32 weight, gradient and two moments
EMBEDDED_GIB = 1.5  # of trainer and server before they hold anything


def make_plan(recipe: Recipe, assumed: Assumptions | None = None) -> Plan:
    """Everything that is known of a recipe before it runs, its checkpoint compared with it where that lies here.

    Raises `RecipeError` where the checkpoint is of no model that we know.
    """
    assumed = assumed or Assumptions()
    illegal = (*violations(recipe), *mismatches(recipe))
    if not _is_countable(recipe):
        return Plan(recipe.name, hardware(recipe), illegal, assumptions=assumed)
    if recipe.engine != "slime":
        return _without_gpus(recipe, assumed, illegal)
    found = budgets(recipe, assumed)
    timing = time_step(recipe, assumed)
    return Plan(
        recipe=recipe.name,
        hardware=hardware(recipe),
        problems=(*illegal, *overruns(recipe, found)),
        budgets=found,
        timing=timing,
        binds=tuple(_binds(recipe, found, timing)),
        notes=tuple(_notes(recipe, timing, assumed)),
        assumptions=assumed,
    )


def burden(recipe: Recipe, assumed: Assumptions) -> float:
    """0 for a plan that fits, more the further from it: what a search goes by. Rules count more than bytes, which mean
    nothing where the layout is no layout."""
    illegal = len(violations(recipe))
    if not _is_countable(recipe):
        return 10.0 * (illegal + 1)
    found = budgets(recipe, assumed)
    excess = sum(max(budget.excess, 0.0) / budget.capacity for budget in found)
    return 10.0 * illegal + sum(1 for _ in overruns(recipe, found)) + excess


def hardware(recipe: Recipe) -> str:
    cluster = recipe.cluster
    if not cluster.gpus_per_node:
        return f"{cluster.cpus_per_node} CPU cores, {cluster.memory_per_node} GiB, no GPU"
    servers = f", {cluster.rollout_gpus} more to serve" if cluster.rollout_gpus else ""
    return f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}{servers}"


def _is_countable(recipe: Recipe) -> bool:
    """Whether fields have allowed values and sizes divide, so that bytes and seconds mean something."""
    if broken(recipe, RULES):
        return False
    on_gpus = recipe.cluster.gpu in GPUS and layout_of(recipe).is_whole(recipe.model.architecture)
    return on_gpus or recipe.engine != "slime"


def _without_gpus(recipe: Recipe, assumed: Assumptions, illegal: tuple[Violation, ...]) -> Plan:
    """An engine on CPUs: what its lasting tensors take at least, and no roofline worth the name."""
    parameters = recipe.model.architecture.parameters
    parts = (
        Component("weights, gradients, moments", float(TRAINED_ON_CPU * parameters), "fp32, activations come on top"),
        Component("processes", EMBEDDED_GIB * GIB, "Python, PyTorch"),
    )
    machine = Budget("machine", recipe.cluster.memory_per_node * GIB, parts, assumed.margin)
    note = (
        f"engine {recipe.engine}, {parameters / 1e6:.1f} M parameters, "
        f"{workload_of(recipe, assumed).trained_episodes} episodes a step: the planner times GPUs only"
    )
    return Plan(
        recipe=recipe.name,
        hardware=hardware(recipe),
        problems=(*illegal, *overruns(recipe, (machine,))),
        budgets=(machine,),
        notes=(note,),
        assumptions=assumed,
    )


def _binds(recipe: Recipe, found: tuple[Budget, ...], timing: Timing) -> Iterator[str]:
    """The fullest budget, and the longest phase of what a step waits for."""
    fullest = max(found, key=lambda budget: budget.bytes / budget.capacity)
    share = fullest.bytes / fullest.capacity
    yield f"memory: {fullest} ({share:.0%}), most of it for {fullest.largest.name}"
    sampling = timing.rollout_seconds >= timing.training_seconds
    awaited = timing.rollout if sampling else timing.training
    phases = awaited if timing.overlap else (*timing.rollout, *timing.training)
    longest = max(phases, key=lambda phase: phase.seconds)
    detail = f": {longest.detail}" if longest.detail else ""
    yield f"time: {longest.name}, {longest.seconds / timing.seconds:.0%} of a step{detail}"


def _notes(recipe: Recipe, timing: Timing, assumed: Assumptions) -> Iterator[str]:
    work, run = workload_of(recipe, assumed), recipe.run
    yield (
        f"an episode is assumed to take {work.turns:.0f} turns and {work.length:.0f} tokens, of which it samples "
        f"{work.sampled:.0f}: put in what a first run measures with --assume"
    )
    cost = f", cost {run.num_rollouts * timing.cost:.0f}" if timing.cost else ""
    size = formulae.checkpoint_bytes(recipe.model.architecture) / GIB
    yield (
        f"the whole run: {run.num_rollouts} steps, {run.num_rollouts * timing.seconds / 3600:.1f} hours{cost}; "
        f"{run.num_rollouts // run.save_interval} checkpoints of {size:.0f} GiB where run.dir lies"
    )
    if recipe.rollout.sandbox not in WITHOUT_IMAGES:
        images = sampled_tasks(recipe) * run.num_rollouts
        yield f"images: at most {images} tasks in the run, {images * assumed.image_gib:.0f} GiB if none is removed"
    if not recipe.serving.external_engines:
        yield from _queue(recipe, work.length)
    if recipe.algorithm.routing_replay == "rollout":
        yield "algorithm.routing_replay=rollout: the routes, kept in the machine's memory, are not counted"


def _queue(recipe: Recipe, length: float) -> Iterator[str]:
    held, asked = cache_tokens(recipe), recipe.serving.concurrency
    if held < asked * length:
        yield (
            f"an engine's cache holds {held / length:.0f} episodes of that length, not serving.concurrency={asked}: "
            "SGLang lets the rest wait"
        )
