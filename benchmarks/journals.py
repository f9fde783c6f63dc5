"""What a run's own record costs, beside the training steps that it is about.

`tiny_cpu` trains a few whole steps, and its logging hook is timed: every episode of a step goes into `episodes.jsonl`,
flushed to the disk, with its index and the step's metrics. The line of `metrics.jsonl`, the step's phases in
`status.json` and its lines of `trained.jsonl` are timed afterwards, in other files. All are milliseconds for one step:
`_ms` of this process's processor time, so that a busy machine measures the same, `_wall_ms` of wall time, the disk's
included. `step_ms` is the trainer's without its server and sandboxes, which are processes of their own. `percent` and
`wall_percent` are the record's share of a step.

`long_episode_ms` is the processor time for one episode of `--tokens` tokens, which is not part of the steps.

    python -m benchmarks.journals [--steps N] [--groups N] [--tokens N] [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command import Figures, run
from benchmarks.trackers import Steps, whole_steps
from slime_swe.embedded.loop import PHASES, train
from slime_swe.journal import Journal
from slime_swe.launch.slime.render import to_args
from slime_swe.rollout.journals import TRAINED, append_records, append_trained, read_appended
from slime_swe.rollout.records import EPISODES, METRICS
from slime_swe.rollout.slime_plugin import log_rollout
from slime_swe.sample import Sample
from slime_swe.status import StatusFile

REPEATED = 10
BYTES_PER_TOKEN = 4


class Spent:
    """Seconds of processor and of wall time inside it, added up."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time(), time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.cpu += time.process_time() - self._began[0]
        self.wall += time.perf_counter() - self._began[1]


def timed_log(rollout_id: int, args: Any, samples: Any, metrics: dict[str, Any] | None, seconds: float) -> bool:
    """The run's logging hook; `args.spent` has a place for each rollout."""
    with args.spent[rollout_id]:
        return log_rollout(rollout_id, args, samples, metrics, seconds)


async def measure(steps: int, groups: int, tokens: int) -> Figures:
    """groups: of eight episodes in a step. tokens: of the long episode."""
    with tempfile.TemporaryDirectory() as name:
        figures = await asyncio.to_thread(_steps, Path(name), steps, groups)
        return figures | {"long_episode_ms": _long_episode(Path(name, "long"), tokens) * 1e3}


def _steps(folder: Path, steps: int, groups: int) -> Figures:
    """Of so many steps after a first one, which starts the server."""
    args, progress = to_args(whole_steps(steps + 1, groups), folder / "run"), Steps()
    args.spent = [Spent() for _ in range(steps + 1)]
    args.custom_rollout_log_function_path = "benchmarks.journals.timed_log"
    train(args, progress)
    copied, status, line = Journal(folder / METRICS), StatusFile(folder, 1), Spent()
    for record in Journal(folder / "run" / METRICS).read()[1:]:
        with line:
            copied.append(record)
            for phase in PHASES:
                status.on_phase(phase)
    trained, _ = read_appended(folder / "run" / TRAINED, 0)
    for rollout in range(1, steps + 1):
        of_step = [sample for sample in trained if sample.rollout_id == rollout]
        assert of_step
        with line:
            append_trained(folder / TRAINED, of_step)
    measured = [*args.spent[1:], line]
    cpu, wall = sum(each.cpu for each in measured), sum(each.wall for each in measured)
    step_cpu, step_wall = progress.times[-1] - progress.times[0], progress.walls[-1] - progress.walls[0]
    return {
        "step_ms": step_cpu / steps * 1e3,
        "step_wall_ms": step_wall / steps * 1e3,
        "journals_ms": cpu / steps * 1e3,
        "journals_wall_ms": wall / steps * 1e3,
        "percent": 100 * cpu / step_cpu,
        "wall_percent": 100 * wall / step_wall,
    }


def _long_episode(folder: Path, tokens: int) -> float:
    """Processor seconds for one of them."""
    sample = Sample(index=0, group_index=0, status=Sample.Status.COMPLETED, reward=1.0)
    sample.tokens, sample.response_length = list(range(tokens)), tokens
    sample.loss_mask, sample.rollout_log_probs = [1] * tokens, [-1.0 / (1 + place) for place in range(tokens)]
    sample.response = "word " * (BYTES_PER_TOKEN * tokens // 5)
    spent = Spent()
    for rollout in range(REPEATED):
        with spent:
            append_records(folder / EPISODES, [sample], rollout_id=rollout)
    return spent.cpu / REPEATED


if __name__ == "__main__":
    sys.exit(run(__doc__, "journals", measure, limits={"percent": 1.0}, steps=2, groups=16, tokens=32768))
