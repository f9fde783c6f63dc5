"""One run of `engine=slime_cpu`: start the embedded server, run SLiME's `train.py` beside it, tell what came of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from embedded import report
from embedded.disk import replace_file, writing
from embedded.server_process import ServerProcess
from launch.args import to_args
from launch.progress import Progress, make_progress
from launch.slime.environment import Homes
from launch.slime.job import Job
from launch.slime.journals import JOURNALS, cut_back
from launch.slime.places import Places
from launch.slime_cpu.figures import read_records
from launch.slime_cpu.render import render
from recipes.base import Recipe

LOG = "slime.log"
METRICS = "metrics.jsonl"
POLL = 2.0  # seconds between looks at what the run has written
STOP = 20.0  # seconds that Ray gets to end its processes
TAIL = 3000  # characters of the log in an error message


class SlimeError(RuntimeError):
    """SLiME's own process failed; the message holds the end of its log."""


def train(recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Any]:
    """Run the recipe in `folder`; returns the summary that it wrote. Raises `SlimeError` or `ServerError`."""
    with make_progress(recipe, folder) as progress:
        return asyncio.run(_train(recipe, folder, progress, resume=resume))


async def _train(recipe: Recipe, folder: Path, progress: Progress, *, resume: bool) -> dict[str, Any]:
    started = time.perf_counter()
    if resume:
        cut_back(Places(folder))
    args = to_args(recipe, folder)
    teller = Teller(recipe, folder, progress)
    async with ServerProcess.of_run(args, folder / "server.log") as server:
        job = render(recipe, folder, f"{server.host}:{server.port}", homes=Homes.find(), resume=resume)
        job.write_files()
        await _follow(job, folder / LOG, teller)
    records = teller.look()
    seconds = _seconds(records)
    summary = report.summarize(args, records, seconds, time.perf_counter() - started)
    summary["logprob_diff_mean"] = [record.get("logprob_diff_mean") for record in records if record["kind"] == "train"]
    report.write_curve(folder, records)
    report.write_summary(folder, summary)
    return summary


async def _follow(job: Job, log: Path, teller: Teller) -> None:
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
        while not await _ended(process):
            teller.glance()
    finally:
        await _stop(process)
    if process.returncode:
        text = log.read_text(errors="replace")[-TAIL:]
        raise SlimeError(f"SLiME ended with code {process.returncode}; {log} ends with:\n{text}")


async def _ended(process: asyncio.subprocess.Process) -> bool:
    try:
        await asyncio.wait_for(process.wait(), POLL)
    except TimeoutError:
        return False
    return True


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


class Teller:
    """Turns what SLiME and the plug-ins have written so far into `metrics.jsonl` and progress."""

    def __init__(self, recipe: Recipe, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.tensorboard = Places(folder).tensorboard
        self.steps, self.rollouts = recipe.algorithm.steps_per_rollout, recipe.run.num_rollouts
        self.told: set[tuple[str, str, int]] = set()
        self.size = -1

    def glance(self) -> None:
        """Look where episodes were written since the last time."""
        size = sum(path.stat().st_size for path in map(self.folder.joinpath, JOURNALS) if path.exists())
        if size != self.size:
            self.size = size
            self.look()

    def look(self) -> list[dict[str, Any]]:
        """Read everything anew; returns all records."""
        records = read_records(self.folder, self.tensorboard, steps=self.steps, rollouts=self.rollouts)
        with writing(self.folder / METRICS):
            lines = b"".join(orjson.dumps(record) + b"\n" for record in records)
            replace_file(self.folder / METRICS, lines)
        for record in records:
            self._tell(record)
        return records

    def _tell(self, record: Mapping[str, Any]) -> None:
        name = (record["kind"], record.get("name", ""), record["rollout_id"])
        if name in self.told:
            return
        self.told.add(name)
        if record["kind"] == "train":
            self.progress.on_step(record["rollout_id"], {k: v for k, v in record.items() if k != "seconds"})
        else:
            self.progress.on_eval(f"{record['name']} {record['moment']}", record)


def _seconds(records: list[dict[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for record in records:
        for name, value in record.get("seconds", {}).items():
            total[name] = total.get(name, 0.0) + value
    return total
