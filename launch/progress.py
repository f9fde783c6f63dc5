"""Live progress of a training run on standard error: a panel on a terminal, one line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from slime_swe.launch.output import duration, sparkline
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.metrics import why_untrained

# metric -> how a person reads it; a metric that a step does not have is left out
SHOWN = {
    "reward": ("reward", "{:.2f}"),
    "solve_rate": ("solved", "{:.0%}"),
    "turns": ("turns", "{:.1f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "seconds": ("s/step", "{:.1f}"),
}
UNTRAINED = 3  # rollouts in a row that train nothing before it is said


@dataclass
class History:
    """What has happened so far. Times in seconds of a monotonic clock."""

    total: int  # rollouts of the run
    started: float
    phase: str = "starting"
    done: int = 0  # rollouts, those before a resume included
    first_done: int | None = None
    stepping_since: float | None = None
    rewards: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    evaluations: list[str] = field(default_factory=list)
    untrained: list[Mapping[str, Any]] = field(default_factory=list)  # metrics of the last rollouts, if none trained

    def step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        self.done = rollout_id + 1
        self.first_done = self.done if self.first_done is None else self.first_done
        self.last = dict(metrics)
        self.untrained = [*self.untrained, metrics] if why_untrained([metrics]) else []
        if isinstance(metrics.get("reward"), int | float):
            self.rewards.append(float(metrics["reward"]))

    def warning(self) -> str:
        """What to say of rollouts in a row that trained nothing; empty where they are few."""
        count = len(self.untrained)
        return (
            f"{count} rollouts in a row trained nothing: {why_untrained(self.untrained)}" if count >= UNTRAINED else ""
        )

    def remaining(self, now: float) -> float | None:
        """Seconds until the last rollout, by the mean pace of the rollouts of this process; None before the second."""
        if self.first_done is None or self.stepping_since is None or self.done == self.first_done:
            return None
        return (now - self.stepping_since) / (self.done - self.first_done) * (self.total - self.done)


@contextmanager
def make_progress(recipe: Recipe, folder: Path, console: Console | None = None) -> Iterator[Reporter]:
    """A live panel where `console` (default: standard error) is a terminal, else plain lines."""
    console = console or Console(stderr=True)
    history = History(total=recipe.run.num_rollouts, started=time.monotonic())
    title = f"{recipe.name} · {folder}"
    if not console.is_terminal:
        yield PlainProgress(history, console, title)
        return
    panel = Panel(history, title)
    with Live(panel, console=console, refresh_per_second=4, transient=True):
        yield Reporter(history)


class Reporter:
    """Keeps the history, which a panel shows. The training loop calls it."""

    def __init__(self, history: History) -> None:
        self.history = history

    def on_phase(self, name: str) -> None:
        self.history.phase = name

    def on_episode(self, evaluation: str, done: int, total: int) -> None:
        self.history.phase = f"evaluation of {evaluation} {done}/{total}"

    def on_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        self.history.step(rollout_id, metrics)
        if self.history.stepping_since is None:
            self.history.stepping_since = time.monotonic()

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None:
        self.history.evaluations.append(f"{name} {describe(metrics)}")


class PlainProgress(Reporter):
    """One line per rollout and evaluation, and per quarter of a long one; phases inside a rollout are left out."""

    def __init__(self, history: History, console: Console, title: str) -> None:
        super().__init__(history)
        self._console = console
        self._say(title)

    def on_episode(self, evaluation: str, done: int, total: int) -> None:
        if quarter(done, total):
            self._say(f"evaluating {evaluation} {done}/{total}")

    def on_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        super().on_step(rollout_id, metrics)
        remaining = self.history.remaining(time.monotonic())
        left = f" · {duration(remaining)} left" if remaining is not None else ""
        self._say(f"rollout {self.history.done}/{self.history.total} · {describe(metrics)}{left}")
        if len(self.history.untrained) == UNTRAINED:
            self._say(self.history.warning())

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None:
        super().on_eval(name, metrics)
        self._say(f"evaluated {self.history.evaluations[-1]}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Panel:
    """Renders the history anew on each refresh."""

    def __init__(self, history: History, title: str) -> None:
        self._history = history
        self._title = title
        self._spinner = Spinner("dots")

    def __rich__(self) -> RenderableType:
        history, now = self._history, time.monotonic()
        remaining = history.remaining(now)
        clock = f"{duration(now - history.started)} elapsed" + (f", {duration(remaining)} left" if remaining else "")
        head = Table.grid(padding=(0, 1))
        head.add_row(self._spinner, Text(history.phase, style="bold"), Text(clock, style="dim"))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=max(history.total, 1), completed=history.done, width=40), self._count())
        lines: list[RenderableType] = [Text(self._title, style="bold cyan"), head, bar]
        if history.rewards:
            lines.append(Text(f"reward {sparkline(history.rewards, 40)}"))
            lines.append(Text(describe(history.last)))
        if history.warning():
            lines.append(Text(history.warning(), style="yellow"))
        return Group(*lines, *(Text(line, style="green") for line in history.evaluations))

    def _count(self) -> Text:
        return Text(f"rollout {self._history.done}/{self._history.total}")


class Bar:
    """How many of `total` are done: a bar on a terminal, lines elsewhere; on standard error."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._console = title, total, Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Move the bar; elsewhere a line for each quarter."""
        self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and quarter(done, total):
            self.say(f"{self._title} {done}/{total}")

    def advance(self, line: str, *, keep: bool) -> None:
        """One more, with a line about it, which is left out on a terminal unless it is to be kept."""
        self._bar.advance(self._task)
        if keep or not self._console.is_terminal:
            self.say(f"{self._bar.tasks[0].completed:.0f}/{self._total} {line}")

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def quarter(done: int, total: int) -> bool:
    """Whether a long count has just passed a quarter; the last says more in another line."""
    return total >= 20 and done < total and done * 4 // total > (done - 1) * 4 // total


def describe(metrics: Mapping[str, Any]) -> str:
    """The metrics that people follow, in one line."""
    shown = [f"{label} {form.format(metrics[name])}" for name, (label, form) in SHOWN.items() if name in metrics]
    return " · ".join(shown)
