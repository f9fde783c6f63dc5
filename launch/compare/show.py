"""A comparison as a person reads it, in points of the solve rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.evaluation.limits import in_words
from slime_swe.launch.output import rate

_NAMED = 3  # tasks that are left out, before "and N more"


def show(sets: Mapping[str, Mapping[str, Any]], required: Sequence[Mapping[str, Any]], console: Console) -> None:
    for name, comparison in sets.items():
        _print(console, [_title(name, comparison), *_evaluations(comparison)])
        console.print(_rates(comparison))
        console.print(_intervals(comparison))
        _print(console, [*_verdict(comparison), *_refused(comparison), *_left_out(comparison), ""])
        if comparison["power"]["run_deviation"]["typical"]:
            _print(console, [_deviation(comparison["power"])])
            console.print(_runs(comparison["power"]))
    for requirement in required:
        met = "met" if requirement["met"] else "not met"
        _print(console, [f"{requirement['set']}: at least {requirement['points']:g} points, and better: {met}"])


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(name: str, comparison: Mapping[str, Any]) -> str:
    count = comparison["repositories"]
    of = f" of {count} {'repository' if count == 1 else 'repositories'}" if count else ""
    return f"{name}: {comparison['tasks']} tasks{of}"


def _evaluations(comparison: Mapping[str, Any]) -> Iterator[str]:
    for side in ("a", "b"):
        for entry in comparison[side]["evaluations"]:
            after = "" if entry["rollout"] is None else f"  (rollout {entry['rollout']})"
            limits = f"  {in_words(entry)}" if "max_turns" in entry else ""
            yield f"  {side.upper()}  {entry['source']}{after}{limits}"


def _rates(comparison: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    for heading in ("", "episodes", "broken", "solved"):
        table.add_column(heading, no_wrap=True)
    for side in ("a", "b"):
        found = comparison[side]
        counts = (str(found[key]) for key in ("episodes", "broken"))
        table.add_row(side.upper(), *counts, rate(found["solve_rate"], found["interval"]))
    table.add_row("B − A", "", "", f"{points(comparison['difference'])} points", style="bold")
    return table


def _intervals(comparison: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE, collapse_padding=True)
    for heading in ("95 % interval of B − A, for", "points", "", "80 % power"):
        table.add_column(heading, no_wrap=True)
    for question, found in comparison["intervals"].items():
        cells = ("–", "refused")
        if "refused" not in found:
            cells = (f"{points(found['low'])} to {points(found['high'])}", found["verdict"])
        detectable = comparison["power"]["detectable"].get(question)
        table.add_row(question, *cells, "–" if detectable is None else f"{100 * detectable:.1f} points")
    return table


def _runs(power: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("points of difference", no_wrap=True)
    for row in power["runs_each"]:
        table.add_column(f"{100 * row['difference']:g}", justify="right", no_wrap=True)
    table.add_row("runs of A and of B", *(str(row["runs"]) for row in power["runs_each"]))
    return table


def _deviation(power: Mapping[str, Any]) -> str:
    most = "" if power["run_deviation_measured"] else "at most "
    typical = 100 * power["run_deviation"]["typical"]
    return f"A run's solve rate has a deviation of {most}{typical:.1f} points. For 80 % power:"


def _verdict(comparison: Mapping[str, Any]) -> Iterator[str]:
    gained, lost = comparison["gained"], comparison["lost"]
    yield f"verdict: {comparison['verdict']} (p = {comparison['p_value']:.2g}, {comparison['test']})"
    yield f"tasks: {gained} better in B, {lost} better in A, {comparison['tasks'] - gained - lost} equal"


def _refused(comparison: Mapping[str, Any]) -> Iterator[str]:
    for question, found in comparison["intervals"].items():
        if "refused" in found:
            yield f"refused: {question}: {found['refused']}"


def _left_out(comparison: Mapping[str, Any]) -> Iterator[str]:
    for side, tasks in comparison["left_out"].items():
        if tasks:
            more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
            yield f"left out: {len(tasks)} tasks that only {side.upper()} has: {', '.join(tasks[:_NAMED])}{more}"


def points(share: float) -> str:
    """`+4.8`, `−0.3` or `0.0`."""
    rounded = round(100 * share, 1)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded):.1f}"
