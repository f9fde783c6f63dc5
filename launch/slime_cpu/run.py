"""One run of `engine=slime_cpu`: start the server that it names, run SLiME beside it, summarise the run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from slime_swe.embedded import report
from slime_swe.embedded.server_process import ServerProcess
from slime_swe.files import replace_file, writing
from slime_swe.launch.evaluation.folder import limits_of
from slime_swe.launch.progress import RunProgress
from slime_swe.launch.slime.paths import LOG, TENSORBOARD, cut_back
from slime_swe.launch.slime.render import to_args
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.process import follow, read_figures
from slime_swe.launch.slime_cpu.render import render
from slime_swe.recipes.base import SGLANG, Data, Recipe
from slime_swe.rollout.metrics import paced
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.saving import raise_if_stopped


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
    """Turns what SLiME and the plug-ins have written so far into `metrics.jsonl` and progress."""

    def __init__(self, recipe: Recipe, folder: Path, progress: RunProgress) -> None:
        self.recipe, self.folder, self.progress = recipe, folder, progress
        self.carries = SCHEDULES[recipe.rollout.schedule].carries
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
                self.progress.on_step(record["rollout_id"], paced(record, carries=self.carries))
            else:
                self.progress.on_eval(f"{record['name']} {record['moment']}", record)
        self.shown = len(records)
        return records
