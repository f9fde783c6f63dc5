"""Show the progress of a run that another process trains, until it ends.

slime-swe watch first                     the lines of its own terminal, and its table at the end
slime-swe watch /shared/runs/first        on another machine that shares the folder
slime-swe watch first --once              what is there now
slime-swe watch first --json              each line is a JSON object, as it comes

It ends with the run's own exit code, and with 1 where the run's process has died. It writes nothing.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from slime_swe.launch.config import read_recipe
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.launch.watch import AsJson, AsLines, Follower, RunState, Shown, state_of
from slime_swe.rollout.records import METRICS

POLL = 1.0  # seconds between two looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="show what is there, and end; 0 while the run goes on")


def run(options: argparse.Namespace) -> int:
    folder = find_run(options.run, options.dir)
    with ExitStack() as stack:
        if options.json:
            watch = Watch(folder, AsJson())
        else:
            lines = AsLines(read_recipe(folder / RECIPE_FILE), folder)
            watch = Watch(folder, lines)
            if not options.once:
                stack.enter_context(lines.progress)
        while (state := watch.look()).exit_code is None and not options.once:
            time.sleep(POLL)
    if state.exit_code is None:
        watch.shown.on_left(state)
        return 0
    watch.shown.on_end(state)
    return state.exit_code


class Watch:
    """One run, looked at again and again."""

    def __init__(self, folder: Path, shown: Shown) -> None:
        self.folder, self.shown = folder, shown
        self._metrics = Follower(folder / METRICS)
        self._last = RunState()

    def look(self) -> RunState:
        """Show what has changed. The state is read first, so that a run that has ended has written all it will."""
        state, last = state_of(self.folder), self._last
        self._last = state
        if state.attempt != last.attempt:
            self.shown.on_attempt(state)
        for record in self._metrics.new():
            self.shown.on_record(record)
        if state.status != last.status:
            self.shown.on_state(state)
        return state
