"""One `Job` as a process of this machine, followed until it ends: the runner of `engine=slime_cpu` and rehearsals."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slime_swe.attempts import of_last_attempt
from slime_swe.errors import InfrastructureError
from slime_swe.files import free_space
from slime_swe.launch.ray.processes import MARK, deferring, stop_owned
from slime_swe.launch.slime.job import Job
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.metrics import GAP_BEFORE, depends_on_timing, episode_metrics, evaluation_metrics
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record
from slime_swe.saving import TRY_AGAIN

POLL = 2.0  # seconds between looks at what the run has written
STOP = 20.0  # seconds that Ray gets to end its processes, and then what it has left
TAIL = 3000  # characters of the log in an error message


async def follow(job: Job, log: Path, poll: Callable[[], None]) -> int:
    """Run it, its output into `log`, calling `poll` meanwhile. Raises `InfrastructureError` where it fails.

    Its exit code: 0, or 75 where it has stopped to be resumed.
    """
    code = await ended(job, log, poll)
    if code not in (0, TRY_AGAIN):
        text = log.read_text(errors="replace")[-TAIL:]
        room = free_space(log)  # a full disk took the lines that would say so
        raise InfrastructureError(f"{job.program[-1]} ended with code {code}; {log} ({room}) ends with:\n{text}")
    return code


async def ended(
    job: Job, log: Path, poll: Callable[[], None] = lambda: None, on_exit: Callable[[], None] = lambda: None
) -> int:
    """The exit code of it; negative for the signal that ended it. What it has started ends with it, also daemons and
    what a killed process has forked: Megatron's writers of checkpoints wait for ever for the rank that they write for.
    `on_exit` is called as soon as it has ended by itself, before the others are stopped.
    """
    mark = job.environment.get(MARK) or uuid.uuid4().hex
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *job.argv,
            cwd=job.directory,
            env=os.environ | dict(job.environment) | {MARK: mark},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C comes here, and Ray is then stopped as one
        )
    try:
        while process.returncode is None:
            poll()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL)
        on_exit()
    finally:
        with deferring():  # a second Ctrl-C would leave what the first is stopping
            await _stop(process)
            await asyncio.to_thread(stop_owned, mark, STOP)
    return process.returncode


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End SLiME's driver, and with it its own Ray, where it still runs."""
    if process.returncode is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


# What a run under SLiME left behind -> the records that `metrics.jsonl` holds, as the embedded engine writes them.
#
# The plug-ins' logging hooks write every episode; SLiME writes its own figures for TensorBoard.
Scalars = Mapping[str, Mapping[int, float]]  # SLiME's name of a figure -> step -> value

TRAINED = {  # SLiME's figure of an optimizer step -> its name in the records
    "train/loss": "loss",
    "train/pg_loss": "pg_loss",
    "train/entropy_loss": "entropy",
    "train/pg_clipfrac": "clip_fraction",
    "train/ppo_kl": "kl_to_old",
    "train/grad_norm": "grad_norm",
}
GAP = "train/train_rollout_logprob_abs_diff"
OURS = ("rollout/staleness", "rollout/dynamic_filter/", "rollout/retried/")  # how our rollout function's figures begin
OLDEST, TRAINED_TOKENS = "rollout/staleness_max", "rollout/trained_tokens"
TIMED = {  # SLiME's figure of a rollout, in seconds -> its name in the records
    "perf/rollout_time": "generation",
    "perf/train_time": "training",
    "perf/update_weights_time": "weight_sync",
    "perf/save_model_time": "checkpoint",
}


def read_figures(
    run: Path, tensorboard: Path, *, steps: int, rollouts: int, limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """All records of a run of `rollouts` rollouts so far, each with `steps` optimizer steps, in the order of time.

    limits: of an evaluation's episodes, which its records state."""
    figures = scalars(tensorboard)
    records: list[dict[str, Any]] = []
    for number, episodes in _by("rollout_id", _counted(run / EPISODES)).items():
        means = {name: mean for name, mean in episode_metrics(episodes).items() if not depends_on_timing(name)}
        where = {"kind": "train", "rollout_id": number, "attempt": episodes[0].attempt}
        records.append({**where, **means, **step_figures(figures, number, steps)})
    for name, played in _by("dataset", _counted(run / EVALUATIONS)).items():
        for number, episodes in _by("rollout_id", played).items():
            moment = {rollouts - 1: "after", -1: "before"}.get(number, "during")
            where = {"kind": "eval", "name": name, "moment": moment, "rollout_id": number}
            where["attempt"] = episodes[0].attempt
            records.append({**where, **limits, **evaluation_metrics(episodes)})
    return sorted(records, key=lambda record: (record["rollout_id"], record["kind"] == "eval"))


def step_figures(figures: Scalars, rollout_id: int, steps: int) -> dict[str, Any]:
    """Of a rollout, our rollout function's figures and SLiME's own: means over its optimizer steps.

    `logprob_diff_mean` compares trainer and server in the first step. Where older weights have sampled it is what our
    rollout function gives while it samples the next rollout, so that the last one has none. Trained tokens are those
    that our rollout function counts; where it counts none, as with a post-process hook of the user's own, and no step
    had a gradient, there were none.
    """
    numbers = range(rollout_id * steps, (rollout_id + 1) * steps)
    found = {
        name: [figures[tag][n] for n in numbers if n in figures[tag]] for tag, name in TRAINED.items() if tag in figures
    }
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    ours = {tag: values[rollout_id] for tag, values in figures.items() if tag.startswith(OURS) and rollout_id in values}
    gap = figures.get(GAP, {}).get(numbers[0])
    if ours.get(OLDEST):
        gap = figures.get(GAP_BEFORE, {}).get(rollout_id + 1)
    seconds = {name: figures[tag][rollout_id] for tag, name in TIMED.items() if rollout_id in figures.get(tag, {})}
    if rollout_id in figures.get(TRAINED_TOKENS, {}):
        means["trained_tokens"] = figures[TRAINED_TOKENS][rollout_id]
    elif means.get("grad_norm") == 0:
        means["trained_tokens"] = 0
    return ours | means | ({} if gap is None else {"logprob_diff_mean": gap}) | {"seconds": seconds}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every figure in a folder of TensorBoard files; of a step that was repeated after a resumption, the last."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # SLiME's environment has it

        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(value.tensor.float_val[0])
    return found


def _counted(journal: Path) -> list[Record]:
    """Of a rollout that two attempts wrote, the last one's."""
    records = read_records(journal)
    return of_last_attempt(records, lambda record: (record.dataset, record.rollout_id), lambda record: record.attempt)


def _by(key: str, records: Iterable[Record]) -> dict[Any, list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(getattr(record, key), []).append(record)
    return groups
