"""A plan for people, at most 100 columns wide, and as one JSON document."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slime_swe.launch.output import duration
from slime_swe.launch.plan.formulae import GIB
from slime_swe.launch.plan.plan import Proposal
from slime_swe.launch.plan.result import Budget, Outlook, Plan, Timing, WholeRun

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
    """Bytes and seconds, with the sums that `show` shows."""
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
