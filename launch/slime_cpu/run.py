"""One run of `engine=slime_cpu`: start its server, run SLiME beside it, read what both write, summarise.

The plug-ins' logging hooks write every episode; SLiME writes its own figures for TensorBoard. `read_figures` makes of
both the records of `metrics.jsonl`, as the embedded engine writes them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from slime_swe.attempts import of_last_attempt
from slime_swe.embedded import report
from slime_swe.embedded.server_process import ServerProcess
from slime_swe.files import replace_file, writing
from slime_swe.launch.evaluation import limits_of
from slime_swe.launch.progress import RunProgress
from slime_swe.launch.slime.paths import LOG, TENSORBOARD, cut_back
from slime_swe.launch.slime.render import to_args
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.process import follow
from slime_swe.launch.slime_cpu.render import render
from slime_swe.recipes.base import SGLANG, Data, Recipe
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.metrics import GAP_BEFORE, depends_on_timing, episode_metrics, evaluation_metrics
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS, Record
from slime_swe.saving import raise_if_stopped

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
ROLLOUT_FIGURES = ("rollout/staleness", "rollout/dynamic_filter/")  # how our rollout function's figures begin
OLDEST, TRAINED_TOKENS = "rollout/staleness_max", "rollout/trained_tokens"
TIMED = {  # SLiME's figure of a rollout, in seconds -> its name in the records
    "perf/rollout_time": "generation",
    "perf/train_time": "training",
    "perf/update_weights_time": "weight_sync",
    "perf/save_model_time": "checkpoint",
}


def train(recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Any]:
    """Run the recipe in `folder`; returns the summary that it wrote. Raises `InfrastructureError` or `ServerError`."""
    with RunProgress(recipe, folder) as progress:
        return asyncio.run(_train(recipe, folder, progress, resume=resume))


async def _train(recipe: Recipe, folder: Path, progress: RunProgress, *, resume: bool) -> dict[str, Any]:
    started = time.perf_counter()
    if resume:
        cut_back(folder, own_state=recipe.data.source == Data.source)
    args = to_args(recipe, folder)
    monitor = Monitor(recipe, folder, progress)
    async with AsyncExitStack() as stack:
        address = None
        if recipe.serving.server != SGLANG and not recipe.supervised:
            server = await stack.enter_async_context(ServerProcess.of_run(args, folder / "server.log"))
            address = f"{server.host}:{server.port}"
        job = render(recipe, folder, address, checkouts=SLIME.checkouts(), resume=resume)
        job.write_files()
        raise_if_stopped(await follow(job, folder / LOG, monitor.poll))
    records, seconds = monitor.read(), Counter[str]()
    for record in records:
        seconds.update(record.get("seconds", {}))  # adds them up
    summary = report.summarize(args, records, seconds, time.perf_counter() - started)
    summary["logprob_diff_mean"] = [record.get("logprob_diff_mean") for record in records if record["kind"] == "train"]
    report.write_curve(folder, records)
    report.write_summary(folder, summary)
    return summary


class Monitor:
    """A reader that turns what SLiME and the plug-ins have written so far into `metrics.jsonl` and progress."""

    def __init__(self, recipe: Recipe, folder: Path, progress: RunProgress) -> None:
        self.recipe, self.folder, self.progress = recipe, folder, progress
        self.shown, self.size = 0, -1  # records, bytes

    def poll(self) -> None:
        """Look where episodes were written since the last time."""
        size = sum(path.stat().st_size for path in (self.folder / EPISODES, self.folder / EVALUATIONS) if path.exists())
        if size != self.size:
            self.size = size
            self.read()

    def read(self) -> list[dict[str, Any]]:
        """Read everything anew; returns all records."""
        steps, rollouts = self.recipe.algorithm.steps_per_rollout, self.recipe.run.num_rollouts
        limits = limits_of(self.recipe)
        records = read_figures(self.folder, self.folder / TENSORBOARD, steps=steps, rollouts=rollouts, limits=limits)
        with writing(self.folder / METRICS):
            replace_file(self.folder / METRICS, b"".join(orjson.dumps(record) + b"\n" for record in records))
        for record in records[self.shown :]:
            if record["kind"] == "train":
                self.progress.on_step(record)
            else:
                self.progress.on_eval(f"{record['name']} {record['moment']}", record)
        self.shown = len(records)
        return records


def read_figures(
    run: Path, tensorboard: Path, *, steps: int, rollouts: int, limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Read all records of a run of `rollouts` rollouts so far, each with `steps` optimizer steps, in the order of time.

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
    """Return our rollout function's figures of a rollout and SLiME's own, which are means over its optimizer steps.

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
    ours = {
        tag: values[rollout_id]
        for tag, values in figures.items()
        if tag.startswith(ROLLOUT_FIGURES) and rollout_id in values
    }
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
    """Read every figure in a folder of TensorBoard files; of a step that was repeated after a resumption, the last."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # SLiME's environment has it

        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(value.tensor.float_val[0])
    return found


def _counted(journal: Path) -> list[Record]:
    """Read the records of a journal; of a rollout that two attempts wrote, the last one's."""
    records = read_records(journal)
    return of_last_attempt(records, lambda record: (record.dataset, record.rollout_id), lambda record: record.attempt)


def _by(key: str, records: Iterable[Record]) -> dict[Any, list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(getattr(record, key), []).append(record)
    return groups
