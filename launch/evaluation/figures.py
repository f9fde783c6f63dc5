"""The figures of an evaluation's sets, from their records: what was solved, and what it used and cost; and the tables
that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.evaluation import in_words, records_of
from slime_swe.launch.output import rate
from slime_swe.rollout.endpoint.replies import Prices, Spending, Usage
from slime_swe.rollout.metrics import evaluation_metrics
from slime_swe.rollout.records import Record, trajectories


def figures_of(folder: Path, names: Sequence[str], spending: Spending | None) -> dict[str, dict[str, Any]]:
    """Return the figures of each set, from what the journal has of it."""
    prices = spending.prices if spending else None
    records = {name: records_of(folder, name) for name in names}
    return {name: {**evaluation_metrics(found), **costs(found, prices)} for name, found in records.items()}


# The tokens that the episodes of a set used, and their cost.
def costs(records: Sequence[Record], prices: Prices | None) -> dict[str, Any]:
    """Count tokens and, by the prices, dollars: for the set, an episode, and a task that an episode has solved. The
    result is empty where no episode says what it used.

    Episodes that infrastructure broke are paid for like others, and their cost is in all of these. Earlier attempts at
    an episode are not: `Spending` counts them too.
    """
    episodes = trajectories(records)
    used = sum((_used(segments[0]) for segments in episodes), Usage())
    if not used.total:
        return {}
    solved = {segments[0].task for segments in episodes if segments[0].solved}
    found: dict[str, Any] = {
        "tokens": as_json(used),
        "tokens_per_episode": used.total / len(episodes),
    }
    if prices is not None:
        dollars = prices.dollars(used)
        found |= {
            "dollars": dollars,
            "dollars_per_episode": dollars / len(episodes),
            "dollars_per_solved_task": dollars / len(solved) if solved else None,
        }
    return found


def as_json(used: Usage) -> dict[str, int]:
    return {"prompt": used.prompt, "cached": used.cached, "completion": used.completion}


def _used(record: Record) -> Usage:
    if record.episode is None:
        return Usage()
    counters = record.episode.counters
    return Usage(counters.prompt_tokens, counters.completion_tokens, counters.cached_tokens)


# The figures as tables.
Results = Mapping[str, Mapping[str, Any]]


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print an evaluation's tables. document: as `--json` prints it."""
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
    """Make the table of the figures that only tasks of this kind have."""
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
