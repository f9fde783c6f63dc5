"""The plans of all GPU recipes as one Markdown page: `python -m tests.launch.plan.plans_page > docs/plans.md`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator

from slime_swe.launch.output import duration
from slime_swe.launch.plan import GIB, Budget, Plan, Timing
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.plan.serving import cache_tokens
from slime_swe.launch.plan.timing import with_outlook
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.registry import RECIPES, load_recipe

HEAD = """# Plans of the recipes

What [`slime-swe plan`](planner.md) computes for each recipe that needs GPUs. These are estimates, not measurements.
`python -m tests.launch.plan.plans_page > docs/plans.md` makes this page. A test compares it, so that a review sees the
effect of a changed recipe or formula.
"""

RUN = """*solved* is the recipe's forecast of its untrained policy. From it follows the share of groups that pass the
filter, which stands before the GPU hours: as expected, and where tasks differ more (*low*) and less (*high*) in how
often they are solved. The hours have the evaluations in them. *carry* is the expected run with
`rollout.schedule=carry`.
"""

LASTING = ("weights", "gradients", "optimizer states", "activations")
PEAKS = ("logits", "one layer's backward pass")

Cells = Callable[[Recipe, Plan, Timing], tuple[str, ...]]


def page() -> str:
    """The whole text."""
    room = ("GPUs", "tp, pp, cp, ep", "training", "serving", "machine", "cache of an engine, tokens")
    parts = (*LASTING, "logits or one layer", "the rest")
    run = ("solved", "expected", "low", "high", "evaluations", "carry")
    step = ("rollout", "slot use", "training", "step", "M tokens", "training tokens/s/GPU", "bottleneck")
    return "\n".join(
        (
            HEAD,
            *_table("Memory: GiB of a GPU, and of a machine", room, _room),
            *_table("Training memory by component: GiB of a GPU", parts, _parts),
            *_table("One step: seconds", step, _step),
            *_table("The whole run: GPU hours", run, _run),
            RUN,
        )
    )


def _table(title: str, headings: Iterable[str], cells: Cells) -> Iterator[str]:
    columns = ("recipe", *headings)
    yield from (f"## {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}")
    for recipe in map(load_recipe, RECIPES):
        plan = with_outlook(make_plan(recipe), recipe)
        if plan.timing is not None:
            yield f"| {' | '.join((recipe.name, *cells(recipe, plan, plan.timing)))} |"
    yield ""


def _room(recipe: Recipe, plan: Plan, timing: Timing) -> tuple[str, ...]:
    parallel = recipe.parallel
    sizes = f"{parallel.tp}, {parallel.pp}, {parallel.cp}, {parallel.ep}"
    full = (
        f"{_gib(budget)} of {budget.capacity / GIB:.0f}"
        for budget in map(plan.budget, ("training", "serving", "machine"))
    )
    return (plan.hardware, sizes, *full, f"{cache_tokens(recipe)}")


def _parts(recipe: Recipe, plan: Plan, timing: Timing) -> tuple[str, ...]:
    budget = plan.budget("training")
    found = {part.name: part.bytes for part in budget.components}
    peak = sum(found.pop(name, 0.0) for name in PEAKS)
    lasting = [found.pop(name) for name in LASTING]
    return tuple(f"{size / GIB:.1f}" for size in (*lasting, peak, sum(found.values())))


def _step(recipe: Recipe, plan: Plan, timing: Timing) -> tuple[str, ...]:
    seconds = (timing.training_seconds, timing.seconds)
    bottleneck = plan.bottlenecks[-1].removeprefix("time: ")
    return (
        f"{timing.rollout_seconds:.0f}",
        f"{timing.slot_use:.2f}",
        *(f"{figure:.0f}" for figure in seconds),
        f"{timing.tokens / 1e6:.1f}",
        f"{timing.train_rate:.0f}",
        bottleneck,
    )


def _run(recipe: Recipe, plan: Plan, timing: Timing) -> tuple[str, ...]:
    run, outlook, found = plan.run, plan.outlook, plan.evaluations
    assert run and outlook and outlook.low and outlook.high and found
    columns = (run, outlook.low, outlook.high)
    carry = f"{outlook.carry.gpu_hours:,.0f}" if outlook.carry else ""
    return (
        f"{recipe.forecast.solved:.1%}",
        *(f"{each.informative:.0%}: {each.gpu_hours:,.0f}" for each in columns),
        f"{found.count} x {found.episodes} episodes, {duration(found.seconds)} each",
        carry,
    )


def _gib(budget: Budget) -> str:
    return f"{budget.bytes / GIB:.1f}"


if __name__ == "__main__":
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # images as published, whatever this machine has measured
    print(page(), end="")
