"""`make_plan`: a recipe -> whether it is legal, whether it fits, how long a step takes, and what limits it.

`fit` says the first two alone, without the simulations that a step's time takes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slime_swe.launch.engines import engine_of
from slime_swe.launch.model import mismatches
from slime_swe.launch.output import duration
from slime_swe.launch.plan import (
    GIB,
    HOUR,
    IDLE,
    Assumptions,
    Budget,
    Checkpoints,
    Component,
    Evaluations,
    Outlook,
    Plan,
    Supervised,
    TaskImages,
    Timing,
    WholeRun,
)
from slime_swe.launch.plan.admission import bounds_of, cached_episodes, episodes_of, informative, sandbox_nodes
from slime_swe.launch.plan.images import task_images
from slime_swe.launch.plan.memory import budgets, most_kept
from slime_swe.launch.plan.problems import checked_advice, is_countable, nearest, overruns
from slime_swe.launch.plan.timing import evaluations_of, time_stage, time_step, whole_run
from slime_swe.launch.plan.training import checkpoint_bytes
from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import wrong_fields
from slime_swe.recipes.layers import WEIGHT_BYTES
from slime_swe.rollout.scheduling.schedulers import SCHEDULES

TRAINED_ON_CPU = 16  # bytes a parameter without GPUs: fp32 weight, gradient and two moments
RARE = (
    "more than an hour lies between two checkpoints: lower run.save_every_minutes or run.save_interval; where a step "
    "takes longer, lower rollout.batch_size"
)
LOPSIDED = 1.25  # times as long as the training beside it, where a rollout has GPUs wait
EMBEDDED_GIB = 1.5  # of trainer and server before they hold anything


@dataclass(frozen=True)
class Proposal:
    """Changes that would make a recipe run. overrides: for the command line. plan: that of the recipe with these."""

    overrides: tuple[str, ...]
    plan: Plan


def fit(recipe: Recipe, assumed: Assumptions | None = None) -> Plan:
    """Return a plan without times: whether a recipe is legal and fits, its checkpoint compared with it if that is here.

    Raises `UserError` where the checkpoint is of no model that we know.
    """
    assumed = assumed or Assumptions()
    counted = engine_of(recipe).on_gpus and not wrong_fields(recipe)
    images = task_images(recipe, assumed) if counted else ()
    problems = (*checked_advice(recipe, assumed, images), *mismatches(recipe))
    plan = Plan(recipe.name, hardware(recipe), problems, assumptions=assumed, images=images)
    if not is_countable(recipe):
        return plan
    if not engine_of(recipe).on_gpus:
        return _without_gpus(recipe, plan)
    found = budgets(recipe, assumed, images)
    return replace(plan, budgets=found, bottlenecks=(_fullest(found),))


def make_plan(recipe: Recipe, assumed: Assumptions | None = None) -> Plan:
    """Return the plan of `fit`, and if the recipe fits GPUs all that is known before it runs. Raises as that does."""
    assumed = assumed or Assumptions()
    plan = fit(recipe, assumed)
    if not plan.fits or not engine_of(recipe).on_gpus:
        return plan
    timing, stage = time_step(recipe, assumed), time_stage(recipe, assumed)
    kept, evaluations = checkpoints_of(recipe, timing), evaluations_of(recipe, assumed)
    run = whole_run(recipe, assumed, timing, evaluations, stage)
    return replace(
        plan,
        timing=timing,
        checkpoints=kept,
        warm_start=stage,
        evaluations=evaluations,
        run=run,
        bottlenecks=(*plan.bottlenecks, _longest(timing)),
        notes=(
            *_of_stage(recipe, stage),
            *_of_balance(recipe, timing),
            *_of_checkpoints(kept),
            _of_episodes(recipe, assumed),
            *_of_evaluations(evaluations, timing),
            _of_run(recipe, run, evaluations, stage),
            *_notes(recipe, assumed, plan.images),
        ),
    )


def propose(plan: Plan, recipe: Recipe, limit: int = 3) -> tuple[Proposal, ...]:
    """Find the nearest changes that make the recipe of a plan legal and let it fit, each planned again; where nothing
    does, the one that comes nearest, whose plan has problems left."""
    if plan.fits:
        return ()
    return tuple(
        Proposal(candidate.overrides, make_plan(candidate.recipe, plan.assumptions))
        for candidate in nearest(recipe, plan.assumptions, plan.images, limit)
    )


def hardware(recipe: Recipe) -> str:
    cluster = recipe.cluster
    if not cluster.gpus_per_node:
        return f"{cluster.cpus_per_node} CPU cores, {cluster.memory_per_node} GiB, no GPU"
    servers = f", {cluster.rollout_gpus} more to serve" if cluster.rollout_gpus else ""
    return f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}{servers}"


def _without_gpus(recipe: Recipe, plan: Plan) -> Plan:
    """Plan an engine on CPUs: what its lasting tensors take at least, and no roofline worth the name."""
    parameters = recipe.model.shape.parameters
    parts = (
        Component("weights, gradients, moments", float(TRAINED_ON_CPU * parameters), "fp32, activations come on top"),
        Component("processes", EMBEDDED_GIB * GIB, "Python, PyTorch"),
    )
    machine = Budget("machine", recipe.cluster.memory_per_node * GIB, parts, plan.assumptions.margin)
    note = (
        f"engine {recipe.engine}, {parameters / 1e6:.1f} M parameters, "
        f"{recipe.rollout.batch_size * recipe.rollout.samples_per_task} episodes a step: the planner times GPUs only"
    )
    found = tuple(problem for _, problem in overruns(recipe, (machine,)).values())
    plan = replace(plan, problems=(*plan.problems, *found), budgets=(machine,), notes=(note,))
    if plan.problems:
        return plan
    stage = time_stage(recipe, plan.assumptions)
    return replace(plan, warm_start=stage, notes=(note, *_of_stage(recipe, stage)))


def checkpoints_of(recipe: Recipe, timing: Timing) -> Checkpoints:
    """Return how often a run saves by both intervals, the second as `slime_swe.saving` counts it, at equal steps.

    A kill costs what was done since the last checkpoint. Where SLiME samples a rollout while it trains on another, that
    one is sampled anew too; and one of `async-save` is whole only when SLiME begins the next.
    """
    run, step = recipe.run, timing.seconds
    rollouts = min(run.save_interval, run.num_rollouts)
    if recipe.save_every_minutes:
        rollouts = min(rollouts, max(1, int(60 * recipe.save_every_minutes // step)))
    unfinished = 2 if recipe.slime.flags.get("async-save") else 1
    return Checkpoints(rollouts, rollouts * step, (unfinished * rollouts + timing.overlap) * step)


def _of_checkpoints(kept: Checkpoints) -> Iterator[str]:
    often = "each rollout" if kept.rollouts == 1 else f"{kept.rollouts} rollouts"
    yield (
        f"a checkpoint after {often}: {kept.seconds / HOUR:.1f} hours from one to the next, and a kill loses at most "
        f"{kept.lost / HOUR:.1f} hours of work"
    )
    if kept.rare:
        yield f"warning: {RARE}"


def _fullest(found: tuple[Budget, ...]) -> str:
    fullest = max(found, key=lambda budget: budget.bytes / budget.capacity)
    share = fullest.bytes / fullest.capacity
    return f"memory: {fullest} ({share:.0%}), most of it for {fullest.largest.name}"


def _longest(timing: Timing) -> str:
    """Name the longest phase of what a step waits for."""
    awaited = timing.training if timing.waits_for_training else timing.rollout
    phases = awaited if timing.overlap else (*timing.rollout, *timing.training)
    longest = max(phases, key=lambda phase: phase.seconds)
    detail = f": {longest.detail}" if longest.detail else ""
    return f"time: {longest.name}, {longest.seconds / timing.seconds:.0%} of a step{detail}"


def _of_balance(recipe: Recipe, timing: Timing) -> Iterator[str]:
    """Say whether GPUs that serve and GPUs that train, which work at once, wait for one another. It is a warning where
    the same GPUs can be divided otherwise: a trainer on one node has none to give. Not covered is a trainer that
    `async` waits for, whose empty slots may be those of its slowest episodes too."""
    rollout, training, cluster = timing.rollout_seconds, timing.training_seconds, recipe.cluster
    shared = "share all (rollout.schedule=carry, cluster.colocate=true)"
    divided = f"(cluster.nodes, cluster.rollout_gpus), or {shared}"
    if not timing.overlap:
        return
    if rollout > LOPSIDED * training:
        found = (
            f"the rollout takes {rollout / training:.1f} times as long as the training beside it, so that the "
            f"{timing.gpus - cluster.rollout_gpus} GPUs that train are idle for {1 - training / rollout:.0%} of a step"
        )
        if cluster.nodes > 1:
            yield f"warning: {found}: give some of them to the servers {divided}"
        else:
            yield f"{found}: with a larger cluster.rollout_gpus a step is shorter; or {shared}"
        return
    idle = math.fsum(phase.seconds for phase in timing.rollout if phase.name == IDLE) / timing.seconds
    if timing.waits_for_training and SCHEDULES[recipe.rollout.schedule].carries and idle > 1 - 1 / LOPSIDED:
        yield (
            f"warning: the trainer is busy all the time, and the servers have no episode in {idle:.0%} of their slots' "
            f"time: give some of the GPUs that serve to the trainer {divided}"
        )


def _of_stage(recipe: Recipe, stage: Supervised | None) -> Iterator[str]:
    if stage is None:
        if data := recipe.warm_start.data:
            yield f"warm_start.data={data}: no such file is on this machine, so nothing of the stage is counted"
        return
    time = f": {stage.seconds / 3600:.1f} hours, {stage.gpu_hours:.0f} GPU hours" if stage.seconds else ""
    yield (
        f"warm start: {stage.steps} steps of {stage.episodes} episodes and {stage.tokens / 1e6:.2f} M tokens{time}. It "
        f"needs no more memory than the rollouts' training: its longest sample has {stage.longest} tokens, of "
        f"rollout.max_context={recipe.rollout.max_context}, and it has no server beside it"
    )


def _of_episodes(recipe: Recipe, assumed: Assumptions) -> str:
    work, share = episodes_of(recipe, assumed), informative(recipe, assumed)
    because = "" if assumed.informative else f", since {recipe.forecast.solved:.1%} of the episodes solve their task"
    passes = f", and {share:.0%} of the groups to pass the filter{because}" if share < 1 else ""
    return (
        f"an episode is assumed to take {work.turns:.0f} turns and {work.length:.0f} tokens on average, of which it "
        f"samples {work.sampled:.0f}{passes}: put in what a first run measures, in the recipe's forecast or with "
        "--assume"
    )


def _of_evaluations(found: Evaluations | None, timing: Timing) -> Iterator[str]:
    if found is None:
        return
    if found.uncounted:
        yield f"nobody knows how many tasks {', '.join(found.uncounted)} of data.eval has: they are not counted"
    hours = found.count * found.seconds / HOUR
    yield (
        f"{found.count} evaluations of {found.episodes:,} episodes, for which training waits: "
        f"{duration(found.seconds)} each, {hours * timing.gpus:,.0f} GPU hours in all, with episodes as in training "
        "and nothing beside them"
    )


def _of_run(recipe: Recipe, run: WholeRun, evaluations: Evaluations | None, stage: Supervised | None) -> str:
    price = recipe.cluster.gpu_hour_price
    cost = f"cost {run.gpu_hours * price:.0f}" if price else "for their cost give cluster.gpu_hour_price"
    (checkpoints, exports), size = most_kept(recipe), checkpoint_bytes(recipe) / GIB
    parts = ["the warm start"] if stage else []
    parts += [f"{recipe.run.num_rollouts} steps"]
    parts += [f"{evaluations.count} evaluations"] if evaluations else []
    return (
        f"the whole run: {' and '.join(parts)}, {run.hours:.1f} hours, {run.gpu_hours:.0f} GPU hours ({cost}); "
        f"at most {checkpoints} checkpoints of {size:.0f} GiB and {exports} exports of "
        f"{WEIGHT_BYTES * recipe.model.shape.parameters / GIB:.0f} GiB at once where run.dir lies"
    )


def _notes(recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...]) -> Iterator[str]:
    if images:
        total, gib = sum(each.count for each in images), sum(each.total for each in images)
        nodes = sandbox_nodes(recipe)
        where = f"each of {nodes} machines" if nodes > 1 else "the machine that has the sandboxes"
        removed = ", which removes some to make room" if recipe.rollout.keep_disk_free else ""
        yield f"images: {total:,}, {gib:,.0f} GiB, come to {where}{removed}: {'; '.join(map(str, images))}"
    yield _admission(recipe, assumed)
    if rank := recipe.algorithm.lora_rank:
        trained = adapters.parameters(recipe)
        yield (
            f"algorithm.lora_rank={rank} trains adapters of {trained / 1e6:.0f} M parameters, "
            f"{trained / recipe.model.shape.parameters:.1%} of the model's; activations are counted as without them"
        )
    if recipe.slime.flags:
        yield f"slime.flags ({', '.join(recipe.slime.flags)}) are passed on: what they change is not counted"


def _admission(recipe: Recipe, assumed: Assumptions) -> str:
    bounds, stated = bounds_of(recipe, assumed), recipe.serving.concurrency
    held = f"an engine's cache holds {cached_episodes(recipe, assumed):.0f} episodes of that length"
    if recipe.serving.external_engines:
        held = "what the caches of serving.external_engines hold is not known"
    cap = f", at most serving.concurrency={stated} an engine" if stated else ""
    return (
        f"{held}{cap}: the run admits {bounds.start} at once when it begins, and between {bounds.least} and "
        f"{bounds.most} as its engines keep or lose their prefixes"
    )


# A plan for people, at most 100 columns wide, and as one JSON document.
WIDTH = 100


def show(plan: Plan, proposals: Sequence[Proposal], console: Console | None = None) -> None:
    if console is None:  # a terminal's own width up to `WIDTH`; `WIDTH` where the output goes elsewhere
        console = Console()
        console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    verdict = "it is legal and fits" if plan.fits else f"it can't run as it is: {len(plan.problems)} problem(s)"
    console.print(f"[bold]{escape(plan.recipe)}[/] on {escape(plan.hardware)}: {verdict}", highlight=False)
    if plan.budgets:
        console.print(_memory(plan.budgets))
    if plan.timing is not None:
        console.print(_time(plan.timing))
    for line in _summary(plan):
        console.print(line, highlight=False)
    for problem in plan.problems:
        console.print(f"[bold red]{escape(problem.field)}[/]  {escape(str(problem))}", highlight=False)
    for line in _proposals(plan, proposals):
        console.print(line, highlight=False, soft_wrap=True)  # to paste


def document(plan: Plan, proposals: Sequence[Proposal]) -> dict[str, Any]:
    """Return the plan as one JSON document, in bytes and seconds, with the sums that `show` shows."""
    found = dataclasses.asdict(plan) | {"fits": plan.fits}
    for budget, shown in zip(plan.budgets, found["budgets"], strict=True):
        shown |= {"bytes": budget.bytes, "fits": budget.fits}
    if plan.timing is not None:
        sums = ("rollout_seconds", "training_seconds", "seconds", "cost")
        found["timing"] |= {name: getattr(plan.timing, name) for name in sums}
    found["proposals"] = [list(proposal.overrides) for proposal in proposals if proposal.plan.fits]
    return found


def _memory(budgets: Sequence[Budget]) -> Table:
    table = _table("Memory", "GiB", "")
    for budget in budgets:
        full = f"of {budget.capacity / GIB:.1f}, {budget.bytes / budget.capacity:.0%}"
        table.add_row(budget.name, f"{budget.bytes / GIB:.1f}", full, style="bold" if budget.fits else "bold red")
        for part in sorted(budget.components, key=lambda part: -part.bytes):
            if part.bytes:
                table.add_row(f"  {part.name}", f"{part.bytes / GIB:.1f}", escape(part.detail))
    return table


def _time(timing: Timing) -> Table:
    table = _table("Time of a step", "seconds", "")
    for name, phases in (("rollout", timing.rollout), ("training", timing.training)):
        seconds = math.fsum(phase.seconds for phase in phases)
        use = f"; {timing.slot_use:.0%} of the slots' time is of use" if name == "rollout" else ""
        table.add_row(name, f"{seconds:.0f}", f"{seconds / timing.seconds:.0%} of a step{use}", style="bold")
        for phase in phases:
            if phase.seconds >= 0.05:
                table.add_row(f"  {phase.name}", f"{phase.seconds:.1f}", escape(phase.detail))
    how = "both at once: the longer one" if timing.overlap else "one after the other"
    table.add_row("step", f"{timing.seconds:.0f}", f"{duration(timing.seconds)}, {how}", style="bold")
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, title_justify="left")
    table.add_column(title, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    return table


def _summary(plan: Plan) -> Iterator[str]:
    if plan.timing is not None:
        timing = plan.timing
        cost = f", cost {timing.cost:.2f}" if timing.cost else ""
        yield (
            f"{timing.episodes} episodes and {timing.tokens / 1e6:.1f} M tokens a step{cost}; on each GPU "
            f"{timing.train_rate:.0f} tokens/s while training, {timing.sample_rate:.0f} sampled tokens/s in a rollout"
        )
    yield from (f"[bold]bottleneck[/]  {escape(line)}" for line in plan.bottlenecks)
    notes = (*plan.notes, *_outlook(plan.run, plan.outlook))
    yield from (f"[bold]note[/]  {escape(line)}" for line in notes)


def _outlook(run: WholeRun | None, outlook: Outlook | None) -> Iterator[str]:
    if run is None or outlook is None:
        return
    others = [f"{each.gpu_hours:,.0f} where {each.informative:.0%} do" for each in (outlook.low, outlook.high) if each]
    if others:
        yield (
            f"{run.gpu_hours:,.0f} GPU hours are those where {run.informative:.0%} of the groups pass the filter: "
            f"{', and '.join(others)}, as tasks differ in their solve rate more or less than expected"
        )
    if carry := outlook.carry:
        saved = run.gpu_hours - carry.gpu_hours
        yield (
            f"rollout.schedule=carry: {duration(carry.step)} a step and {carry.gpu_hours:,.0f} GPU hours, "
            f"{saved:,.0f} less ({saved / run.gpu_hours:.0%}), by simulation; no run on GPUs has shown yet that SLiME "
            "offloads engines whose requests were cut"
        )


def _proposals(plan: Plan, proposals: Sequence[Proposal]) -> Iterator[str]:
    if plan.fits:
        return
    if not proposals or not proposals[0].plan.fits:
        yield "No change of layout, recomputation, offloading, memory shares or nodes that was tried makes it run."
    else:
        yield "[bold]What would run[/], nearest first:"
    for proposal in proposals:
        for problem in proposal.plan.problems:
            yield f"Nearest to it are the changes below; they leave {escape(problem.message)}"
        timing = proposal.plan.timing
        step = f"   # a step in {duration(timing.seconds)}, {proposal.plan.hardware}" if timing else ""
        yield f"  {escape(' '.join(proposal.overrides))}{escape(step)}"
