"""One drill: a run begins, a part of it fails, what SLiME makes of that is waited for, and the run is resumed."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from slime_swe.attempts import ATTEMPTS, attempting
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import replace_file
from slime_swe.launch.model import converted_folder
from slime_swe.launch.progress import Bar
from slime_swe.launch.ray.processes import MARK, stop_owned
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.faults import FAILS_IN, MOMENTS, PARTS, Drill
from slime_swe.launch.rehearse.faults.injection import FullDisk, Injection, LostNode, Processes, Watch, left_after
from slime_swe.launch.rehearse.faults.outcome import Left, Outcome, Seen, judge, record
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.rehearsal import Rehearsal
from slime_swe.launch.rehearse.toy import CONTEXT
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import LOG, cut_back
from slime_swe.launch.slime_cpu.process import ended, follow
from slime_swe.recipes.base import Parallel, Recipe, Slime

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
        """Play the drill, and return what was seen. Raises `InfrastructureError` where the moment never comes."""
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
        """Resume the run, and return the exit code that `--resume` has."""
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
        """Wait for the run's end, and return its exit code and 0.0.

        A run that hangs is stopped as by Ctrl-C; then the result is None and the seconds without a new file.
        """
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
    """List what a run that goes on adds to: journals, dumps, checkpoints, exports. Logs grow while it hangs too."""
    folders = [
        *run.glob("*.jsonl"),
        *(path for name in ("dumps", "checkpoints", "exports") for path in run.glob(f"{name}/*")),
    ]
    return sorted((path.name, path.stat().st_mtime_ns) for path in folders if path.exists())


def _ending(code: int | None, seconds: float) -> str:
    return f"hung for {seconds:.0f} s" if code is None else f"ended with code {code} after {seconds:.0f} s"


# The drills of one recipe, one after another, from a toy of its model in Megatron's format.
GROUPS = 6  # of a rollout, which then takes a toy some seconds
CHECKED = {"rollout-health-check-first-wait": 0, "rollout-health-check-interval": 0.5}  # seconds


def drilled(recipe: Recipe, drill: Drill) -> Recipe:
    """Change a scaled recipe as it is drilled: a trainer rank and an engine, two of that which fails or one on each
    node, and one checkpoint kept.

    It has no routing replay, for which PyPI's router would have to be replaced. SLiME looks for dead engines as often
    in a rollout of seconds as it does in one of minutes.
    """
    part = PARTS[drill.part]
    ranks, engines = (part.count if part.title == PARTS[name].title else 1 for name in ("rank", "engine"))
    ports = {} if part.nodes == 1 else {"num-gpus-per-node": 1}  # of a server are asked for on its own node
    alike = Parallel(max_tokens_per_gpu=CONTEXT, recompute=recipe.parallel.recompute)
    return replace(
        recipe,
        parallel=alike,
        cluster=replace(recipe.cluster, gpus_per_node=ranks, rollout_gpus=max(engines, part.nodes)),
        rollout=replace(recipe.rollout, batch_size=GROUPS),
        algorithm=replace(recipe.algorithm, routing_replay="none"),
        run=replace(recipe.run, keep_checkpoints=1, keep_exports=1),
        slime=Slime({**recipe.slime.flags, **CHECKED, **ports}),
    )


def play(own: Recipe, platform: Platform, folder: Path, drills: Sequence[Drill]) -> Iterator[Outcome]:
    """Yield each drill's outcome as soon as it is there, and write it to `PART.MOMENT.json` in the folder.

    Raises `UserError` on GPUs, and for a model that no server has on a CPU.
    """
    if platform.name != "cpu":
        raise UserError(f"faults are drilled on a CPU alone: leave on={platform.name} out")
    why = platform.unserved(own)
    if why:
        raise UserError(f"faults of recipe={own.name} can't be drilled here: {why}")
    with Bar("drilling", len(drills) + 2) as progress:
        progress.say(f"{own.name} · {folder}")
        rehearsal = Rehearsal(own, platform, folder, progress)
        checkouts = rehearsal.checkouts
        if not converted_folder(rehearsal.recipe).exists():
            job = jobs.to_megatron(rehearsal.recipe, platform, rehearsal.folder, checkouts)
            asyncio.run(follow(job, rehearsal.folder / "conversion.log", lambda: None))
        progress.advance("toy in Megatron's format", keep=True)
        for drill in drills:
            recipe = drilled(rehearsal.recipe, drill)
            seen = Play(drill, recipe, platform, rehearsal.folder / drill.name, checkouts, progress.say).play()
            outcome = judge(seen, own.name, f"{datetime.now(UTC):%Y-%m-%d}")
            content = json.dumps(record(outcome), indent=2).encode() + b"\n"
            replace_file(rehearsal.folder / f"{drill.name}.json", content)
            progress.advance(f"{drill.name}: {outcome.ending}, {len(outcome.broken)} promises broken", keep=True)
            yield outcome
