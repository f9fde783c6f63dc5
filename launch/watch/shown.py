"""What `slime-swe watch` shows: the lines and the bar that the run's own terminal has, or lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson

from slime_swe.embedded.report import SUMMARY_FILE
from slime_swe.launch.progress import RunProgress
from slime_swe.launch.runs import to_go_on
from slime_swe.launch.summary import say_untrained, show_summary
from slime_swe.launch.watch.state import RunState, ago, in_doubt
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.group_outcomes import why_untrained
from slime_swe.rollout.metrics import paced, seconds_of
from slime_swe.rollout.scheduling.schedule import SCHEDULES
from slime_swe.saving import TRY_AGAIN


class Shown(Protocol):
    def on_attempt(self, state: RunState) -> None:
        """Another attempt than before, or the first that is seen."""
        ...

    def on_state(self, state: RunState) -> None:
        """Its phase or how far it is has changed."""
        ...

    def on_record(self, record: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`."""
        ...

    def on_left(self, state: RunState) -> None:
        """The run goes on, and is watched no more."""
        ...

    def on_end(self, state: RunState) -> None: ...


class AsLines:
    """By the code that shows the run's own progress. Its pace is that of the records, not that of their reading."""

    def __init__(self, recipe: Recipe, folder: Path, progress: RunProgress | None = None) -> None:
        self.recipe, self.folder = recipe, folder
        self.progress = progress or RunProgress(recipe, folder, clock=lambda: self._seconds)
        self._seconds = 0.0  # of the run, up to the last record
        self._attempt: int | None = None  # of that
        self._steps: list[Mapping[str, Any]] = []
        self._carries = SCHEDULES[recipe.rollout.schedule].carries

    def on_attempt(self, state: RunState) -> None:
        process = state.process
        if process is not None:
            where = f"process {process.pid} on {process.host} since {process.since} UTC"
            self.progress.say(f"attempt {process.attempt} · {where}")
            if state.lasts is None and state.exit_code is None:
                self.progress.say(in_doubt(process, state.status))

    def on_state(self, state: RunState) -> None:
        if state.status is not None:
            self.progress.show_phase(f"{state.status.phase} {state.status.detail}".rstrip())

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._seconds += seconds_of(record)
        if record.get("attempt") != self._attempt:
            self._attempt = record.get("attempt")
            self.progress.on_attempt()
        if record["kind"] == "train":
            self._steps.append(record)
            self.progress.on_step(record["rollout_id"], paced(record, carries=self._carries))
        else:
            figures = {name: value for name, value in record.items() if name != "seconds"}
            self.progress.on_eval(f"{record['name']} {record['moment']}", figures)

    def on_left(self, state: RunState) -> None:
        if (status := state.status) is not None:
            self.progress.say(f"now: {status.phase} {status.detail}".rstrip() + f", which began {ago(status.since)}")

    def on_end(self, state: RunState) -> None:
        summary = self.folder / SUMMARY_FILE
        if state.exit_code == 0 and summary.is_file():
            show_summary(orjson.loads(summary.read_bytes()), self.folder, as_json=False)
        elif state.exit_code == 0:
            self.progress.say(f"the run has succeeded  {self.folder}")
            say_untrained(why_untrained(self._steps))
        else:
            what = "stopped" if state.exit_code == TRY_AGAIN else "failed"
            print(f"the run has {what}: {state.why}\nTo go on: {to_go_on(self.recipe)}", file=sys.stderr)


class AsJson:
    """One JSON object a line: `kind` is `attempt`, `status`, `end`, or that of a line of `metrics.jsonl`."""

    def on_attempt(self, state: RunState) -> None:
        self._print("attempt", {**msgspec.to_builtins(state.process), "lasts": state.lasts})

    def on_state(self, state: RunState) -> None:
        if state.status is not None:
            self._print("status", msgspec.to_builtins(state.status))

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._print(record["kind"], record)

    def on_left(self, state: RunState) -> None: ...

    def on_end(self, state: RunState) -> None:
        self._print("end", {"attempt": state.attempt, "exit_code": state.exit_code, "why": state.why})

    def _print(self, kind: str, values: Mapping[str, Any]) -> None:
        print(orjson.dumps({"kind": kind, **values}).decode(), flush=True)
