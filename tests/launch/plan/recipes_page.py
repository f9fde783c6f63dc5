"""The end of docs/recipes.md, a section for each GPU recipe: `python -m tests.launch.plan.recipes_page`."""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
from collections.abc import Iterator

from slime_swe.launch.output import duration
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.plan.timing import with_outlook
from slime_swe.recipes.registry import RECIPES, load_recipe

HEADING = "## Each recipe"


def names() -> list[str]:
    return [name for name in RECIPES if load_recipe(name).engine == "slime"]


def render() -> str:
    return "\n".join((HEADING, "", *map(section, names())))


def section(name: str) -> str:
    """What its module says, and what the planner does."""
    return "\n".join(_lines(name))


def _lines(name: str) -> Iterator[str]:
    recipe = load_recipe(name)
    plan = with_outlook(make_plan(recipe), recipe)
    assert plan.timing and plan.checkpoints and plan.run and plan.outlook and plan.evaluations, plan.problems
    steps, seconds = recipe.run.num_rollouts, plan.timing.seconds
    run, low, high, carry = plan.run, plan.outlook.low, plan.outlook.high, plan.outlook.carry
    assert low and high
    train = ", ".join(f"`{spec}`" for spec in recipe.data.training_sets)
    yield from (f"### {name}", "", inspect.getdoc(importlib.import_module(RECIPES[name])) or "", "")
    yield f"Trains on {train}, evaluated on {', '.join(f'`{spec}`' for spec in recipe.data.eval.values())}."
    yield (
        f"Planned: {plan.hardware}, {duration(seconds)} a step, {run.gpu_hours:,.0f} GPU hours for {steps} steps and "
        f"{plan.evaluations.count} evaluations"
    )
    yield (
        f"where {run.informative:.0%} of the groups pass the filter ({low.gpu_hours:,.0f} where {low.informative:.0%} "
        f"do, {high.gpu_hours:,.0f} where {high.informative:.0%} do). Limits:"
    )
    yield f"{'; '.join(plan.bottlenecks)}."
    saved, most = plan.checkpoints.seconds / 60, plan.checkpoints.lost / 60
    if carry:
        less = 1 - carry.gpu_hours / run.gpu_hours
        yield f"With `rollout.schedule=carry` {carry.gpu_hours:,.0f} GPU hours, {less:.0%} less, by simulation."
    yield f"Between two checkpoints lie {saved:.0f} minutes, and a kill loses at most {most:.0f} minutes of work."
    yield ""


if __name__ == "__main__":
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # images as published, whatever this machine has measured
    print(render(), end="")
