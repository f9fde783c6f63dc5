"""What the trackers of a run cost, beside the training steps that they show.

`tiny_cpu` trains a few whole steps; then each tracker is given the same records, with tables of episodes, again and
again. All are milliseconds of this process's processor time for one step, so that a busy machine measures the same:
`step_ms` is the trainer's without its server and sandboxes, which are processes of their own, as is the one that wandb
starts. `calling_ms` is the wall time that the training loop itself spends. `percent` is all three trackers of a step.

    python -m benchmarks.trackers [--steps N] [--groups N] [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import Figures, run
from slime_swe.embedded.loop import train
from slime_swe.embedded.trackers import TRACKERS, Opening, Trackers, figures_of
from slime_swe.journal import Journal
from slime_swe.launch.slime.render import to_args
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.registry import load_recipe
from slime_swe.rollout.metrics import COLUMNS, SHOWN
from slime_swe.rollout.records import METRICS

REPEATED = 30
SECONDS = 120.0  # that a tracker may take to open, or to take what waits
PATCH = "--- a/module.py\n+++ b/module.py\n@@ -1,2 +1,2 @@\n-    return first - second\n+    return first + second\n"
ROWS = [[0, "task", True, 1.0, "submitted", 5, PATCH]] * SHOWN
assert len(ROWS[0]) == len(COLUMNS)


class Steps:
    """Processor and wall time at the end of each rollout."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.walls: list[float] = []

    def on_phase(self, name: str) -> None: ...

    def on_episode(self, evaluation: str, done: int, total: int) -> None: ...

    def on_step(self, record: Mapping[str, Any]) -> None:
        self.times.append(time.process_time())
        self.walls.append(time.perf_counter())

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None: ...


async def measure(steps: int, groups: int) -> Figures:
    """groups: of eight episodes in a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}
        records, figures = await asyncio.to_thread(_train, folder / "run", steps, groups)
        for tracker in TRACKERS:
            figures |= _cost(tracker, Opening(folder / "run", "benchmark"), records)
    figures["percent"] = 100 * sum(figures[f"{tracker}_ms"] for tracker in TRACKERS) / figures["step_ms"]
    return figures


def _train(folder: Path, steps: int, groups: int) -> tuple[list[dict[str, Any]], Figures]:
    """The records of so many steps after a first one, which starts the server."""
    progress = Steps()
    train(to_args(whole_steps(steps + 1, groups), folder), progress)
    spent = (progress.times[-1] - progress.times[0]) / steps
    return Journal(folder / METRICS).read(), {"step_ms": spent * 1e3}


def whole_steps(count: int, groups: int) -> Recipe:
    """`tiny_cpu` with so many steps, each of so many groups, and without evaluations."""
    recipe = load_recipe("tiny_cpu")
    data, rollout = replace(recipe.data, eval={}), replace(recipe.rollout, batch_size=groups)
    return replace(recipe, data=data, rollout=rollout, run=replace(recipe.run, num_rollouts=count, keep_checkpoints=1))


def _cost(name: str, opening: Opening, records: list[dict[str, Any]]) -> Figures:
    running = Trackers([name], opening)
    running.log(-1, {"swe/opened": 1.0})
    _wait(running)
    started, calling = time.process_time(), 0.0
    for step in range(REPEATED):
        before = time.perf_counter()
        running.log(step, figures_of(records[step % len(records)]), ROWS)
        calling += time.perf_counter() - before
        _wait(running)
    time.sleep(1.0)  # trackio sends from a thread of its own
    spent = time.process_time() - started
    lost = running.close()
    assert not lost, lost
    return {f"{name}_ms": spent / REPEATED * 1e3, f"{name}_calling_ms": calling / REPEATED * 1e3}


def _wait(running: Trackers) -> None:
    """Until all that was logged is taken."""
    deadline = time.monotonic() + SECONDS
    while running.waiting():
        assert time.monotonic() < deadline, "a tracker takes nothing"
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(run(__doc__, "trackers", measure, limits={"percent": 1.0}, steps=2, groups=16))
