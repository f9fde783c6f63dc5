"""An evaluation's figures as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.evaluation.folder import in_words
from slime_swe.launch.output import rate

Results = Mapping[str, Mapping[str, Any]]


def show(document: Mapping[str, Any], console: Console) -> None:
    """document: as `--json` prints it."""
    results = document["sets"]
    console.print(_solved(results, complete=document["complete"]))
    console.print(f"Episodes of {in_words(document)}", highlight=False)
    if any("pass_at_k" in figures for figures in results.values()):
        console.print(_passes(results))
    for name, figures in results.items():
        for kind, own in figures.get("of_kind", {}).items():
            console.print(_of_kind(name, kind, own))
    if any("tokens" in figures for figures in results.values()):
        console.print(_costs(results))
    spent = document.get("spent")
    if spent is not None:
        dollars = "" if spent["dollars"] is None else f", ${spent['dollars']:.2f}"
        console.print(f"All calls together: {spent['prompt'] + spent['completion']:,} tokens{dollars}", highlight=False)
    if not document["complete"]:
        console.print(
            f"INCOMPLETE: the budget is spent, and {document['left']} of {document['episodes']} episodes were not "
            "played. These are the figures of the tasks that came first; --resume with a larger --budget goes on",
            highlight=False,
        )


def _solved(results: Results, *, complete: bool) -> Table:
    title = "Solve rate, with 95 % intervals" if complete else "INCOMPLETE: solve rate of what was played"
    table = _table(title, "", "tasks", "episodes", "broken", "solved", "turns", "edits")
    for name, figures in results.items():
        counts = [str(figures[key]) for key in ("tasks", "episodes", "infrastructure_failures")]
        behaviour = [f"{figures[key]:.2f}" if key in figures else "–" for key in ("turns", "edits")]
        table.add_row(name, *counts, rate(figures["solve_rate"], figures["interval"]), *behaviour)
    return table


def _passes(results: Results) -> Table:
    table = _table("Of k episodes of a task", "", "k", "one solves it (pass@k)", "all solve it (pass^k)")
    for name, figures in results.items():
        for k, share in figures.get("pass_at_k", {}).items():
            table.add_row(name, k, rate(share), rate(figures["pass_hat_k"][k]))
    return table


def _of_kind(name: str, kind: str, figures: Mapping[str, float]) -> Table:
    """Figures that only tasks of this kind have."""
    table = _table(f"{name}: {kind}", *figures)
    table.add_row(
        *(f"{value:.0f}" if value == int(value) and value > 1 else f"{value:.3f}" for value in figures.values())
    )
    return table


def _costs(results: Results) -> Table:
    headings = ("", "prompt", "cached", "completion", "tokens/episode", "$/episode", "$/solved task")
    table = _table("Tokens, as the engine counts them", *headings)
    for name, figures in results.items():
        if "tokens" not in figures:
            continue
        counts = [f"{figures['tokens'][kind]:,}" for kind in ("prompt", "cached", "completion")]
        prices = [_dollars(figures.get(key)) for key in ("dollars_per_episode", "dollars_per_solved_task")]
        table.add_row(name, *counts, f"{figures['tokens_per_episode']:,.0f}", *prices)
    return table


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table
