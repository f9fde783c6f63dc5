"""One drill: a run begins, a part of it fails, what SLiME makes of that is waited for, and the run is resumed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from slime_swe.attempts import ATTEMPTS, attempting
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.ray.processes import MARK, stop_owned
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.faults import FAILS_IN, MOMENTS, Drill
from slime_swe.launch.rehearse.faults.disk import FullDisk
from slime_swe.launch.rehearse.faults.evidence import Left, Seen
from slime_swe.launch.rehearse.faults.injection import Injection
from slime_swe.launch.rehearse.faults.processes import Processes, Watch, left_after
from slime_swe.launch.rehearse.faults.two_nodes import LostNode
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import LOG, cut_back
from slime_swe.launch.slime_cpu.process import ended
from slime_swe.recipes.base import Recipe

INJECTIONS: Mapping[str, type[Injection]] = {"disk": FullDisk, "network": LostNode}  # of the other parts: signals
USER_ERROR = 2  # exit code
LOOK = 0.01  # seconds between looks for the moment
COMES_IN = 900.0  # seconds in which a moment must come
HANGS = 240.0  # seconds without a new file after which a run is said to hang: processes of an engine start in 100
STOP = 10.0  # seconds that what is left of a run gets to end


@dataclass
class Play:
    """A drill that is played in a folder of its own. say: shows a line of progress."""

    drill: Drill
    recipe: Recipe
    platform: Platform
    run: Path
    checkouts: Checkouts
    say: Callable[[str], None]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def play(self) -> Seen:
        """Raises `InfrastructureError` where the moment never comes."""
        self.injection = INJECTIONS.get(self.drill.part, Injection)(self.drill, self.run)
        with ExitStack() as stack:
            stack.enter_context(self.injection.prepared())
            stack.callback(stop_owned, self.mark, STOP)
            return asyncio.run(self._play())

    async def _play(self) -> Seen:
        with attempting(self.run / ATTEMPTS):
            code, seconds, at_fault = await self._fail(self._job(resume=False))
        processes = left_after(lambda: self.injection.living(self.mark), self.injection.ends_within)
        at_end, resumed = Left.of(self.run), None
        self.injection.mend()
        if code != 0:
            self.say(f"{self.drill.name}: {_ending(code, seconds)}; resuming")
            resumed = await self._resume()
        return Seen(
            drill=self.drill,
            rollouts=self.recipe.run.num_rollouts,
            groups=self.recipe.rollout.batch_size,
            episodes=self.recipe.rollout.samples_per_task,
            save_interval=self.recipe.run.save_interval,
            code=code,
            seconds=seconds,
            processes=tuple(processes),
            at_fault=at_fault,
            at_end=at_end,
            resumed=resumed,
            finally_=Left.of(self.run),
        )

    def _job(self, *, resume: bool) -> Job:
        job = jobs.train_job(self.recipe, self.platform, self.run, self.checkouts, resume=resume)
        job.write_files()
        started = self.injection.started(job)
        return replace(started, environment={**started.environment, MARK: self.mark})

    async def _resume(self) -> int:
        """The exit code that `--resume` has."""
        try:
            cut_back(self.run)
        except UserError as error:
            self.say(f"{self.drill.name}: {error}")
            return USER_ERROR
        with attempting(self.run / ATTEMPTS):
            running = asyncio.create_task(ended(self._job(resume=True), self.run / "resume.log"))
            code, _ = await self._until_ended(running)
        return 1 if code is None else code

    async def _fail(self, job: Job) -> tuple[int | None, float, Left]:
        exits: list[float] = []
        log, on_exit = self.run / LOG, lambda: exits.append(time.monotonic())
        running = asyncio.create_task(ended(job, log, on_exit=on_exit))
        try:
            processes = Processes(self.mark)
            await self._until_moment(running, processes)
            self.injection.inject(processes)
            failed, at_fault = time.monotonic(), Left.of(self.run)
            self.say(f"{self.drill.name}: failed")
            code, idle = await self._until_ended(running)
        finally:
            running.cancel()
        return code, idle if code is None else exits[0] - failed, at_fault

    async def _until_moment(self, running: asyncio.Task[int], processes: Processes) -> None:
        deadline = time.monotonic() + COMES_IN
        watch = Watch(MOMENTS[self.drill.moment].of(FAILS_IN), self.run, processes)
        while not watch.has_come():
            if running.done() or time.monotonic() > deadline:
                log = self.run / LOG
                raise InfrastructureError(f"{self.drill.name}: the {self.drill.moment} never came; see {log}")
            await asyncio.sleep(LOOK)

    async def _until_ended(self, running: asyncio.Task[int]) -> tuple[int | None, float]:
        """Its code, or None and the seconds for which nothing had come: then it was stopped as Ctrl-C does."""
        held, since = _files(self.run), time.monotonic()
        while not running.done():
            await asyncio.wait({running}, timeout=1.0)
            now = _files(self.run)
            if now != held:
                held, since = now, time.monotonic()
            elif time.monotonic() - since > HANGS:
                idle = time.monotonic() - since
                running.cancel()
                await asyncio.wait({running})
                return None, idle
        return running.result(), 0.0


def _files(run: Path) -> list[tuple[str, int]]:
    """What a run that goes on adds to: journals, dumps, checkpoints, exports. Logs grow while it hangs too."""
    folders = [
        *run.glob("*.jsonl"),
        *(path for name in ("dumps", "checkpoints", "exports") for path in run.glob(f"{name}/*")),
    ]
    return sorted((path.name, path.stat().st_mtime_ns) for path in folders if path.exists())


def _ending(code: int | None, seconds: float) -> str:
    return f"hung for {seconds:.0f} s" if code is None else f"ended with code {code} after {seconds:.0f} s"
