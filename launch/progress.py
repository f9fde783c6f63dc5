"""What a person sees of a run: its progress on standard error, and at its end a table on standard output.

Progress is a line for each event, and on a terminal a bar below them. The table is of the run's summary.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slime_swe.launch.evaluation import in_words
from slime_swe.launch.output import duration, print_json, rate, sparkline, table_console
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.metrics import Untrained, paced, why_untrained
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.status import StatusFile

# metric -> how a person reads it; a metric that a step does not have is left out
SHOWN = {
    "reward": ("reward", "{:.2f}"),
    "solve_rate": ("solved", "{:.0%}"),
    "turns": ("turns", "{:.1f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "seconds": ("s/step", "{:.1f}"),
}


class _StandardError(Console):
    """Standard error, on which a reader that has gone, such as `head`, ends the output; rich would end the process."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Bar:
    """A bar of how many of `total` are done, on `console` (default: standard error); the context shows it."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        self.title, self.total = title, total
        self._console = console or _StandardError()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        hidden = not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=hidden)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Move the bar; elsewhere say a line for each quarter of a long count."""
        self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and quarter(done, total):
            self.say(f"{self.title} {done}/{total}")

    def advance(self, line: str, *, keep: bool) -> None:
        """Count one more, with a line about it, which is left out on a terminal unless it is to be kept."""
        self._bar.advance(self._task)
        if keep or not self._console.is_terminal:
            self.say(f"{self._bar.tasks[0].completed:.0f}/{self.total} {line}")

    def say(self, line: str) -> None:
        try:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        except OSError:  # the terminal was closed, or the disk of the log is full
            self._console.quiet = True


class RunProgress(Bar):
    """The progress of a training run, whose loop calls it: a line for each rollout and evaluation, and the bar's phase.

    status: where the phase is written, for others. clock: seconds, by which the run's pace is taken.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        console: Console | None = None,
        *,
        status: StatusFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("starting", recipe.run.num_rollouts, console)
        self._status, self._clock = status, clock
        self._carries, self._limits = SCHEDULES[recipe.rollout.schedule].carries, recipe.alarm_limits
        self._rewards: list[float] = []
        self.on_attempt()
        self.say(f"{recipe.name} · {folder}")

    def on_attempt(self) -> None:
        """Take pace, rollouts in a row and alarms anew: the next rollout is the first of its process."""
        self._first: tuple[int, float] | None = None  # rollout of this process, and when it was done
        self._untrained, self._alarms = Untrained(), Alarms(self._limits)

    def on_phase(self, name: str) -> None:
        if self._status is not None:
            self._status.on_phase(name)
        self.show_phase(name)

    def show_phase(self, name: str) -> None:
        """Name the phase beside the bar."""
        self._bar.update(self._task, description=f"{name} {sparkline(self._rewards, 20)}")

    def on_episode(self, evaluation: str, done: int, total: int) -> None:
        if self._status is not None:
            self._status.on_detail(f"{evaluation} {done}/{total}")
        self.show_phase(f"evaluating {evaluation} {done}/{total}")
        if not self._console.is_terminal and quarter(done, total):
            self.say(f"evaluating {evaluation} {done}/{total}")

    def on_step(self, record: Mapping[str, Any]) -> None:
        """Show a rollout's line of `metrics.jsonl`."""
        metrics = paced(record, carries=self._carries)
        done, now = record["rollout_id"] + 1, self._clock()
        self._bar.update(self._task, completed=done)
        left = remaining(self._first, (done, now), self.total)
        self._first = self._first or (done, now)
        if isinstance(metrics.get("reward"), int | float):
            self._rewards.append(float(metrics["reward"]))
        ending = "" if left is None else f" · {duration(left)} left"
        nothing = " · trained nothing" if why_untrained([metrics]) else ""
        self.say(f"rollout {done}/{self.total} · {describe(metrics)}{nothing}{ending}")
        for said in (self._untrained.add(metrics), *self._alarms.add(record)):
            if said:
                self.say(said)

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None:
        self.say(f"evaluated {name} {describe(metrics)}")


def remaining(first: tuple[int, float] | None, now: tuple[int, float], total: int) -> float | None:
    """Return the seconds to the last rollout, by the mean pace since this process's first; None before the second.

    `first`, `now`: how many rollouts were done, and when, in seconds of a monotonic clock.
    """
    if first is None or now[0] == first[0]:
        return None
    return (now[1] - first[1]) / (now[0] - first[0]) * (total - now[0])


def quarter(done: int, total: int) -> bool:
    """Say whether a long count has just passed a quarter other than the last, of which another line says more."""
    return total >= 20 and done < total and done * 4 // total > (done - 1) * 4 // total


def describe(metrics: Mapping[str, Any]) -> str:
    """Write the metrics that people follow in one line, a solve rate with its interval where it has one."""
    found = {name: form.format(metrics[name]) for name, (_, form) in SHOWN.items() if metrics.get(name) is not None}
    if "solve_rate" in found and (interval := metrics.get("interval")):
        found["solve_rate"] += f" ({100 * interval[0]:.0f}–{100 * interval[1]:.0f})"
    return " · ".join(f"{SHOWN[name][0]} {value}" for name, value in found.items())


# The table at the end of a training run.
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


def held(alarm: Mapping[str, Any]) -> str:
    """Write from when to when an alarm of a summary held, and how far it went."""
    name, first, last, worst, limit = (alarm[key] for key in ("name", "first", "last", "worst", "limit"))
    rollouts = f"rollout {first}" if first == last else f"rollouts {first} to {last}"
    if name == "gap":
        return f"{name}: {rollouts}, {worst:.2g} nats, limit {limit:g}"
    times = name in ("stall", "drift")
    bounds = f"{worst:.0f} times, limit {limit:g}" if times else f"up to {worst:.0%}, limit {limit:.0%}"
    return f"{name}: {rollouts}, {bounds}"


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
    for alarm in summary.get("alarms") or ():
        lines.append(f"alarm  {held(alarm)}")
    if summary.get("infrastructure_failures"):
        lines.append(f"episodes that infrastructure broke, not trained on  {summary['infrastructure_failures']}")
    return [*lines, f"run  {folder}"]
