"""One run of `engine=slime_cpu`: start the embedded server, run SLiME beside it, summarise the run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from slime_swe.embedded import report
from slime_swe.embedded.server_process import ServerProcess
from slime_swe.errors import InfrastructureError
from slime_swe.files import replace_file, writing
from slime_swe.launch.args import to_args
from slime_swe.launch.progress import RunProgress
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import TENSORBOARD, cut_back
from slime_swe.launch.slime_cpu.figures import read_figures
from slime_swe.launch.slime_cpu.render import render
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.rules import at_once
from slime_swe.rollout.records import EPISODES, EVALUATIONS

LOG = "slime.log"
METRICS = "metrics.jsonl"
POLL = 2.0  # seconds between looks at what the run has written
STOP = 20.0  # seconds that Ray gets to end its processes
TAIL = 3000  # characters of the log in an error message


def train(recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Any]:
    """Run the recipe in `folder`; returns the summary that it wrote. Raises `InfrastructureError` or `ServerError`."""
    with RunProgress(recipe, folder) as progress:
        return asyncio.run(_train(recipe, folder, progress, resume=resume))


async def _train(recipe: Recipe, folder: Path, progress: RunProgress, *, resume: bool) -> dict[str, Any]:
    started = time.perf_counter()
    if resume:
        cut_back(folder)
    args = to_args(recipe, folder)
    monitor = Monitor(recipe, folder, progress)
    async with ServerProcess.of_run(args, folder / "server.log") as server:
        job = render(recipe, folder, f"{server.host}:{server.port}", checkouts=Checkouts.find(), resume=resume)
        job.write_files()
        await _follow(job, folder / LOG, monitor)
    records, seconds = monitor.read(), Counter[str]()
    for record in records:
        seconds.update(record.get("seconds", {}))  # adds them up
    summary = report.summarize(args, records, seconds, time.perf_counter() - started)
    summary["logprob_diff_mean"] = [record.get("logprob_diff_mean") for record in records if record["kind"] == "train"]
    report.write_curve(folder, records)
    report.write_summary(folder, summary)
    return summary


async def _follow(job: Job, log: Path, monitor: Monitor) -> None:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *job.argv,
            cwd=job.directory,
            env=os.environ | dict(job.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C comes here, and Ray is then stopped as one
        )
    try:
        while process.returncode is None:
            monitor.poll()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL)
    finally:
        await _stop(process)
    if process.returncode:
        text = log.read_text(errors="replace")[-TAIL:]
        raise InfrastructureError(f"SLiME ended with code {process.returncode}; {log} ends with:\n{text}")


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


class Monitor:
    """Turns what SLiME and the plug-ins have written so far into `metrics.jsonl` and progress."""

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
        first = not at_once(self.recipe)
        records = read_figures(
            self.folder, self.folder / TENSORBOARD, steps=steps, rollouts=rollouts, evaluated_first=first
        )
        with writing(self.folder / METRICS):
            replace_file(self.folder / METRICS, b"".join(orjson.dumps(record) + b"\n" for record in records))
        for record in records[self.shown :]:
            if record["kind"] == "train":
                self.progress.on_step(record["rollout_id"], {k: v for k, v in record.items() if k != "seconds"})
            else:
                self.progress.on_eval(f"{record['name']} {record['moment']}", record)
        self.shown = len(records)
        return records
