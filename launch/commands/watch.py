"""Show the progress of a run that another process trains, until it ends.

slime-swe watch first                     the lines of its own terminal, and its table at the end
slime-swe watch /shared/runs/first        on another machine that shares the folder
slime-swe watch first --once              what is there now
slime-swe watch first --json              each line is a JSON object, as it comes

It ends with the run's own exit code, and with 1 where the run's process has died. It writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson

from slime_swe.attempts import ATTEMPTS, Process, last_process, lasts
from slime_swe.embedded.report import SUMMARY_FILE
from slime_swe.errors import UserError
from slime_swe.launch.cli import FAILURE
from slime_swe.launch.config import read_recipe
from slime_swe.launch.output import duration
from slime_swe.launch.progress import RunProgress, say_untrained, show_summary
from slime_swe.launch.runs import RECIPE_FILE, find_run, to_go_on
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.metrics import seconds_of, why_untrained
from slime_swe.rollout.records import METRICS
from slime_swe.saving import TRY_AGAIN
from slime_swe.status import Status, read_status

POLL = 1.0  # seconds between two looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="show what is there, and end; 0 while the run goes on")


def run(options: argparse.Namespace) -> int:
    folder = find_run(options.run, options.dir)
    with ExitStack() as stack:
        recipe = read_recipe(folder / RECIPE_FILE)
        lines = None if options.json else AsLines(recipe, folder)
        watch = Watch(folder, lines or AsJson(), recipe.alarm_limits)
        if lines and not options.once:
            stack.enter_context(lines.progress)
        while (state := watch.look()).exit_code is None and not options.once:
            time.sleep(POLL)
    if state.exit_code is None:
        watch.shown.on_left(state)
        return 0
    watch.shown.on_end(state)
    return state.exit_code


class Watch:
    """One run, looked at again and again. limits: of its alarms, of which a stall alone is raised here: the others are
    raised by what the run records, and a run that hangs records nothing."""

    def __init__(self, folder: Path, shown: Shown, limits: Mapping[str, float]) -> None:
        self.folder, self.shown = folder, shown
        self._metrics = Follower(folder / METRICS)
        self._last = RunState()
        self._limits, self._alarms = limits, Alarms(limits)
        self._attempt: int | None = None  # of the last record

    def look(self) -> RunState:
        """Show what has changed. The state is read first, so that a run that has ended has written all it will."""
        state, last = state_of(self.folder), self._last
        self._last = state
        if state.attempt != last.attempt:
            self.shown.on_attempt(state)
        for record in self._metrics.new():
            self.shown.on_record(record)
            self._count(record)
        if state.status != last.status:
            self.shown.on_state(state)
        if state.exit_code is None and (said := self._alarms.overdue(seconds_since(self._metrics.path))):
            self.shown.on_stall(said)
        return state

    def _count(self, record: Mapping[str, Any]) -> None:
        if record.get("attempt") != self._attempt:
            self._attempt, self._alarms = record.get("attempt"), Alarms(self._limits)
        if record["kind"] == "train":
            self._alarms.add(record)


def seconds_since(path: Path) -> float:
    """Return the seconds since a file was last written; 0 where there is none."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


class Shown(Protocol):
    """A way to show a run: the lines and the bar that its own terminal has, or lines of JSON."""

    def on_attempt(self, state: RunState) -> None:
        """Show another attempt than before, or the first that is seen."""
        ...

    def on_state(self, state: RunState) -> None:
        """Show that the phase of the run, or how far it is, has changed."""
        ...

    def on_record(self, record: Mapping[str, Any]) -> None:
        """Show a line of `metrics.jsonl`."""
        ...

    def on_stall(self, said: str) -> None:
        """Show that nothing was recorded for long."""
        ...

    def on_left(self, state: RunState) -> None:
        """Show that the run goes on, and is watched no more."""
        ...

    def on_end(self, state: RunState) -> None: ...


class AsLines:
    """A run as lines, by the code that shows its own progress. Its pace is that of the records, not of their
    reading."""

    def __init__(self, recipe: Recipe, folder: Path, progress: RunProgress | None = None) -> None:
        self.recipe, self.folder = recipe, folder
        self.progress = progress or RunProgress(recipe, folder, clock=lambda: self._seconds)
        self._seconds = 0.0  # of the run, up to the last record
        self._attempt: int | None = None  # of that
        self._steps: list[Mapping[str, Any]] = []

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
            self.progress.on_step(record)
        else:
            figures = {name: value for name, value in record.items() if name != "seconds"}
            self.progress.on_eval(f"{record['name']} {record['moment']}", figures)

    def on_stall(self, said: str) -> None:
        self.progress.say(said)

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
    """Each line is one JSON object: its `kind` is `attempt`, `status`, `stall`, `end` or that of a record."""

    def on_attempt(self, state: RunState) -> None:
        self._print("attempt", {**msgspec.to_builtins(state.process), "lasts": state.lasts})

    def on_state(self, state: RunState) -> None:
        if state.status is not None:
            self._print("status", msgspec.to_builtins(state.status))

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._print(record["kind"], record)

    def on_stall(self, said: str) -> None:
        self._print("stall", {"said": said})

    def on_left(self, state: RunState) -> None: ...

    def on_end(self, state: RunState) -> None:
        self._print("end", {"attempt": state.attempt, "exit_code": state.exit_code, "why": state.why})

    def _print(self, kind: str, values: Mapping[str, Any]) -> None:
        print(orjson.dumps({"kind": kind, **values}).decode(), flush=True)


# Whether a run still runs, and how it ended, from what it leaves in its folder.
@dataclass(frozen=True)
class RunState:
    """A run's state. process: of the last attempt; None where the run never began. status: what that attempt said last.

    lasts: whether it runs; None where that can't be known on this machine.
    exit_code: of a run that has ended, by itself or not; None while it runs, or may run.
    why: in words, where that is not 0.
    """

    process: Process | None = None
    status: Status | None = None
    lasts: bool | None = False
    exit_code: int | None = None
    why: str = ""

    @property
    def attempt(self) -> int:
        return self.process.attempt if self.process else 0


def state_of(folder: Path) -> RunState:
    """Read a run's state. SLiME's driver is a process of its own, and the run lasts as long as it does."""
    alive = [lasts(folder / name) for name in (ATTEMPTS, DRIVERS)]
    running = True if True in alive else None if None in alive else False
    process, status = last_process(folder / ATTEMPTS), read_status(folder)
    if process is None:
        return RunState(exit_code=FAILURE, why="the run has never begun") if running is False else RunState(lasts=True)
    written = status is not None
    status = status if status is not None and status.attempt == process.attempt else None
    if running is not True and status is not None and status.exit_code is not None:
        return RunState(process, status, False, status.exit_code, status.why)
    if running is False:
        if not written and (folder / SUMMARY_FILE).is_file():  # of a version that wrote no status
            return RunState(process, None, False, 0)
        return RunState(process, status, False, FAILURE, _died(process, status))
    return RunState(process, status, running)


def _died(process: Process, status: Status | None) -> str:
    place = f", in the phase {status.phase}, which began {ago(status.since)}" if status and status.phase else ""
    return (
        f"process {process.pid} on {process.host} died without a word{place}: it was killed (kill -9, out of memory), "
        "or its machine stopped"
    )


def in_doubt(process: Process, status: Status | None) -> str:
    """Say that it can't be known whether the run goes on."""
    heard = f"; it was last heard of {ago(status.since)}" if status and status.since else ""
    return (
        f"whether process {process.pid} still runs is known on {process.host} alone, as the file system of its "
        f"folder has no locks between machines{heard}"
    )


def ago(since: float) -> str:
    """Write for people how long ago a moment was, in seconds of Unix time."""
    return f"{duration(max(0.0, time.time() - since))} ago"


_PATIENCE = 3  # looks at which a whole line may be no JSON: over NFS its bytes may come after its length


class Follower:
    """A reader of the lines that are new in a file of JSON lines, which another process writes, cuts back or replaces.
    It opens the file anew at each look, as NFS wants it.

    A line that is still being written waits. Where the line that was read last is no more where it was, the file was
    cut back or replaced: it is then read again from its start, and what was given before is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end, self._last = 0, b""  # of what was read, in bytes; the last line of it
        self._given = set[tuple[Any, ...]]()
        self._damaged = 0

    def new(self) -> list[dict[str, Any]]:
        """Read the whole lines that were not given yet, in order; none where there is no file. Raises `UserError` where
        a line is no JSON and stays so."""
        try:
            with self.path.open("rb") as file:
                content = self._unread(file.fileno())
        except FileNotFoundError:
            return []
        return [record for record in self._records(content) if self._is_new(record)]

    def _unread(self, descriptor: int) -> bytes:
        start = self._end - len(self._last)
        if os.pread(descriptor, len(self._last), start) != self._last:
            self._end, self._last = 0, b""
        return _read(descriptor, self._end)

    def _records(self, content: bytes) -> Iterator[dict[str, Any]]:
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                self._damaged += 1
                if self._damaged >= _PATIENCE:
                    raise UserError(f"{self.path} has a line that is no JSON ({error}): restore the file") from error
                return
            self._damaged = 0
            self._end, self._last = self._end + len(line), line
            yield record

    def _is_new(self, record: dict[str, Any]) -> bool:
        key = tuple(record.get(name) for name in ("kind", "name", "moment", "rollout_id", "attempt"))
        new = key not in self._given
        self._given.add(key)
        return new


def _read(descriptor: int, start: int) -> bytes:
    found = bytearray()
    while part := os.pread(descriptor, 1 << 20, start + len(found)):
        found += part
    return bytes(found)
