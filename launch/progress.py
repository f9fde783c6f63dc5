"""Live progress of a training run on standard error: a panel on a terminal, one line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from launch.text import duration, sparkline
from recipes.base import Recipe

# metric -> how a person reads it; a metric that a step does not have is left out
SHOWN = {
    "reward": ("reward", "{:.2f}"),
    "solve_rate": ("solved", "{:.0%}"),
    "turns": ("turns", "{:.1f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "seconds": ("s/step", "{:.1f}"),
}


class Progress(Protocol):
    """What a training loop tells of itself."""

    def on_phase(self, name: str) -> None: ...

    def on_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None: ...

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None: ...


@dataclass
class History:
    """What was told so far. Times in seconds of a monotonic clock."""

    total: int  # rollouts of the run
    started: float
    phase: str = "starting"
    done: int = 0  # rollouts, those before a resume included
    first_done: int | None = None
    stepping_since: float | None = None
    rewards: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    evaluations: list[str] = field(default_factory=list)

    def step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        self.done = rollout_id + 1
        self.first_done = self.done if self.first_done is None else self.first_done
        self.last = dict(metrics)
        if isinstance(metrics.get("reward"), int | float):
            self.rewards.append(float(metrics["reward"]))

    def remaining(self, now: float) -> float | None:
        """Seconds until the last rollout, by the mean pace of the rollouts of this process; None before the second."""
        if self.first_done is None or self.stepping_since is None or self.done == self.first_done:
            return None
        return (now - self.stepping_since) / (self.done - self.first_done) * (self.total - self.done)


@contextmanager
def make_progress(recipe: Recipe, folder: Path, console: Console | None = None) -> Iterator[Progress]:
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
    """Keeps the history; what shows it looks there."""

    def __init__(self, history: History) -> None:
        self.history = history

    def on_phase(self, name: str) -> None:
        self.history.phase = name

    def on_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        self.history.step(rollout_id, metrics)
        if self.history.stepping_since is None:
            self.history.stepping_since = time.monotonic()

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None:
        self.history.evaluations.append(f"{name} {describe(metrics)}")


class PlainProgress(Reporter):
    """One line per rollout and evaluation; phases inside a rollout are not told."""

    def __init__(self, history: History, console: Console, title: str) -> None:
        super().__init__(history)
        self._console = console
        self._say(title)

    def on_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        super().on_step(rollout_id, metrics)
        remaining = self.history.remaining(time.monotonic())
        left = f" · {duration(remaining)} left" if remaining is not None else ""
        self._say(f"rollout {self.history.done}/{self.history.total} · {describe(metrics)}{left}")

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
        return Group(*lines, *(Text(line, style="green") for line in history.evaluations))

    def _count(self) -> Text:
        return Text(f"rollout {self._history.done}/{self._history.total}")


def describe(metrics: Mapping[str, Any]) -> str:
    """The metrics that people follow, in one line."""
    shown = [f"{label} {form.format(metrics[name])}" for name, (label, form) in SHOWN.items() if name in metrics]
    return " · ".join(shown)
