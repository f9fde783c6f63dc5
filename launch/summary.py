"""The table at the end of a training run, from its summary."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.evaluation.folder import in_words
from slime_swe.launch.output import duration, print_json, rate, sparkline, table_console

TITLES = {"heldout": "held-out tasks", "unseen_bug_class": "bug classes never trained on"}
EVALUATED_ONLY = "run.num_rollouts=0: the model was evaluated, and nothing was to be trained"
BEHAVIOUR: dict[str, tuple[str, Callable[[float], str]]] = {  # figure in the summary -> how a person reads it
    "episodes": ("  episodes", "{:,}".format),
    "first_edit_solve_rate": ("  solved by the first edit", rate),
    "first_try_solve_rate": ("  solved in the first try", rate),
    "edits_per_episode": ("  edits per episode", "{:.2f}".format),
    "turns_per_episode": ("  turns per episode", "{:.2f}".format),
}


def show_summary(summary: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """Print what a run ends with: one JSON document, or the table; on standard error why it trained nothing."""
    if as_json:
        print_json(summary)
    else:
        print_summary(summary, folder)
    say_untrained(summary.get("nothing_trained_because") or "")


def say_untrained(why: str) -> None:
    """Say on standard error that a run has trained nothing; why: it is so, or empty."""
    if why:
        print(f"Nothing was trained: {why}.", file=sys.stderr)


def print_summary(summary: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    console = console or table_console()
    names = evaluation_sets(summary)
    if names:
        console.print(_evaluation_table(summary, names))
    for line in _closing_lines(summary, folder):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _evaluation_table(summary: Mapping[str, Any], names: Sequence[str]) -> Table:
    """Lay out each evaluation set before and after, with 95 % intervals."""
    table = Table(title="Solve rate, with 95 % intervals", title_justify="left", title_style="bold", box=SIMPLE)
    for heading in ("", "before", "after"):
        table.add_column(heading, no_wrap=True)
    for name in names:
        cells = [
            rate(summary.get(f"{name}_solve_rate_{moment}"), summary.get(f"{name}_interval_{moment}"))
            for moment in ("before", "after")
        ]
        table.add_row(TITLES.get(name, name), *cells, style="bold")
        for figure, (label, form) in BEHAVIOUR.items():
            values = [summary.get(f"{name}_{figure}_{moment}") for moment in ("before", "after")]
            if any(value is not None for value in values):
                table.add_row(label, *("–" if value is None else form(value) for value in values))
    return table


def evaluation_sets(summary: Mapping[str, Any]) -> list[str]:
    """List the prefixes of the evaluated sets' keys, in the summary's order."""
    found = (re.fullmatch(r"(.+?)(?<!_first_edit)(?<!_first_try)_solve_rate_(?:before|after)", key) for key in summary)
    names = [match[1] for match in found if match]
    return list(dict.fromkeys(names))


def _closing_lines(summary: Mapping[str, Any], folder: Path) -> list[str]:
    rewards = [reward for reward in summary.get("reward_per_step", ()) if reward is not None]
    phases = [
        (name, seconds)
        for name, seconds in sorted(summary.get("seconds_by_phase", {}).items(), key=lambda phase: -phase[1])
        if name != "total" and seconds >= 0.05
    ]
    lines = []
    if summary.get("num_rollouts") == 0:
        lines.append(EVALUATED_ONLY)
    if evaluation_sets(summary) and "max_turns" in summary:
        lines.append(f"episodes of {in_words(summary)}")
    if rewards:
        lines.append(f"reward per rollout  {sparkline(rewards, 40)}  {rewards[0]:.2f} → {rewards[-1]:.2f}")
    lines.append(f"time  {duration(summary['wall_seconds'])}: " + ", ".join(f"{n} {s:.1f} s" for n, s in phases))
    for name, why in (summary.get("trackers_lost") or {}).items():
        lines.append(f"{name} was lost and lacks figures, which metrics.jsonl has  {why}")
    if summary.get("infrastructure_failures"):
        lines.append(f"episodes that infrastructure broke, not trained on  {summary['infrastructure_failures']}")
    return [*lines, f"run  {folder}"]
