"""A recipe and the time of its step -> the hours of the whole run: steps, evaluations and the warm start."""

from __future__ import annotations

from dataclasses import replace

from slime_swe.launch.plan.admission import informative
from slime_swe.launch.plan.assumptions import Assumptions
from slime_swe.launch.plan.images import tasks_of
from slime_swe.launch.plan.result import HOUR, Evaluations, Outlook, Plan, Supervised, Timing, WholeRun
from slime_swe.launch.plan.rollout import evaluation_seconds
from slime_swe.launch.plan.timing import time_step
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.rules import OUR_GENERATE
from slime_swe.rollout.scheduling.schedule import SYNC


def evaluations_of(recipe: Recipe, assumed: Assumptions) -> Evaluations | None:
    """Training waits for each of them, and so do all GPUs. The first comes before the first rollout."""
    run, sets = recipe.run, recipe.data.evaluation_sets
    if not sets:
        return None
    count = 1 + run.num_rollouts // (run.eval_interval or max(1, run.num_rollouts))
    sizes = {name: tasks_of(spec) for name, spec in sets.items()}
    episodes = recipe.data.eval_samples_per_task * sum(size or 0 for size in sizes.values())
    seconds = evaluation_seconds(recipe, assumed, episodes) if episodes else 0.0
    return Evaluations(count, episodes, seconds, tuple(name for name, size in sizes.items() if size is None))


def whole_run(
    recipe: Recipe, assumed: Assumptions, timing: Timing, evaluations: Evaluations | None, stage: Supervised | None
) -> WholeRun:
    """timing: of its step. `evaluations` and `stage` take as long whatever share of the groups passes the filter."""
    seconds = recipe.run.num_rollouts * timing.seconds
    if evaluations:
        seconds += evaluations.count * evaluations.seconds
    hours = (seconds + (stage.seconds if stage else 0.0)) / HOUR
    return WholeRun(informative(recipe, assumed), timing.seconds, hours, hours * timing.gpus)


def with_outlook(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with what the run comes to at the bounds of the forecast and with `carry`: up to three more simulations,
    the one of `low` the longest. A plan without times stays as it is."""
    if plan.run is None:
        return plan
    shares, low, high, carry = recipe.informative, None, None, None

    def run(other: Recipe, assumed: Assumptions) -> WholeRun:
        return whole_run(other, assumed, time_step(other, assumed), plan.evaluations, plan.warm_start)

    assumed = plan.assumptions
    if shares.expected < 1 and not assumed.informative:
        low, high = (run(recipe, replace(assumed, informative=share)) for share in (shares.low, shares.high))
    if recipe.rollout.schedule == SYNC and recipe.rollout.generate == OUR_GENERATE:
        carry = run(replace(recipe, rollout=replace(recipe.rollout, schedule="carry")), assumed)
    return replace(plan, outlook=Outlook(low, high, carry))
