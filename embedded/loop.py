"""How a run learns on one machine, from its first evaluation to its summary. `train` does this, in order:

1. begin an attempt, and, on resumption, cut the run's journals back to its newest whole checkpoint;
2. start the server, unless one is given, and bring it to the policy's weights;
3. evaluate before the first rollout, unless the run is resumed;
4. for each rollout: sample groups of episodes, train on those that are kept, sync the new weights to the server, record
   the step, evaluate where it is due, and save a checkpoint;
5. evaluate after the last rollout, if there was one, and write the learning curve and `summary.json`.

What tests hold of it:

- A run that is killed at any moment, or told to stop, resumes with nothing lost and nothing counted twice.
- With deterministic inference and the schedule `sync`, one seed gives one run, to the bit, resumed or not, whatever the
  number of episodes at once.
- One process writes a run; one whose run was taken from it saves no checkpoint any more, and stops.
- A run is resumed with the arguments that make it what it is, or not at all, from the newest checkpoint that is whole.
- The policy is sampled over HTTP only, and all that is about tasks, agents and rewards is reached through SLiME's
  hooks by dotted path: the same plug-ins run under SLiME itself.
- Each episode of a group that was judged is recorded, also where the group is dropped and not trained on.
- What infrastructure broke is counted apart and never trained on.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from slime_swe.attempts import ATTEMPTS, Attempt, attempting, of_last_attempt
from slime_swe.embedded import checkpoint, report
from slime_swe.embedded.checkpoint import Checkpoint, ResumeError
from slime_swe.embedded.server_process import ServerProcess, update_weights
from slime_swe.embedded.trackers import Opening, Trackers, figures_of
from slime_swe.embedded.train_data import to_train_data
from slime_swe.embedded.trainer import Trainer, trained_samples
from slime_swe.embedded.workers import set_threads
from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.journal import Journal
from slime_swe.rollout.collect import Driver, Rollout, driver_of
from slime_swe.rollout.engine import abort_all
from slime_swe.rollout.evaluation import as_slime, evaluate, limits, load_evaluation_tasks
from slime_swe.rollout.hooks import RolloutHooks, optional_hook, required_hook
from slime_swe.rollout.journals import TRAINED, append_trained
from slime_swe.rollout.loop_scope import gate_of_loop
from slime_swe.rollout.metrics import episode_metrics, evaluation_metrics, rollout_record, rows_of
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS, episode_of, flatten, trajectories
from slime_swe.rollout.retention import best_rollout
from slime_swe.rollout.scheduling.schedulers import SCHEDULES, SYNC
from slime_swe.sample import Sample
from slime_swe.saving import Saves, StoppedToResume

HURRIED = 5.0  # seconds that trackers get where a run fails
JOURNALS = (METRICS, EPISODES, EVALUATIONS, TRAINED)  # the logging hooks write episodes and evaluations

T = TypeVar("T")


def train(args: Namespace, progress: Progress, attempt: Attempt | None = None) -> dict[str, Any]:
    """Run the recipe that `args` holds (SLiME's names), in `args.swe_run_dir`; returns the summary that it wrote.

    With `args.load` the run goes on after its newest checkpoint, or from the start where there is none. `attempt` is
    the run's, where the caller has begun it. Raises a `ValueError` for what a user can put right (`HeldError` where
    another process writes the run), `ServerError`, `InfrastructureError` or `TrainingError` for what broke, and
    `StoppedToResume` where it has been asked to stop.
    """
    run_dir = Path(args.swe_run_dir)
    with ExitStack() as stack:
        if attempt is None:
            with writing(run_dir):
                run_dir.mkdir(parents=True, exist_ok=True)
            attempt = stack.enter_context(attempting(run_dir / ATTEMPTS))
        return asyncio.run(_run(Namespace(**vars(args) | {"swe_attempt": attempt.number}), progress, attempt))


async def _run(args: Namespace, progress: Progress, attempt: Attempt) -> dict[str, Any]:
    found = _resume_point(args, Path(args.swe_run_dir))
    clock = Clock(progress.on_phase, found.state.seconds if found else None)
    async with AsyncExitStack() as stack:
        with clock.phase("startup"):
            loop = _Loop(args, progress, clock, found, attempt)
            await loop.start(stack)
        return await loop.run()


def _resume_point(args: Namespace, run_dir: Path) -> Checkpoint | None:
    """Find the checkpoint to go on from, and cut the journals back to it."""
    if not args.load:
        if checkpoint.latest(Path(args.save)) is not None or Journal(run_dir / METRICS).size():
            raise ResumeError(f"{run_dir} holds an earlier run: resume it, or choose another run directory")
        return None
    found = checkpoint.latest(Path(args.save), Checkpoint.require_loadable)
    if found is not None:
        checkpoint.require_same(found, args)
    for name in JOURNALS:
        size, attempt = (found.state.journals.get(name, 0), found.state.attempt) if found else (0, 0)
        Journal(run_dir / name).cut(size, attempt)
    return found


class _Loop:
    """One run's parts and its place in it."""

    driver: Driver  # since `start`

    def __init__(
        self, args: Namespace, progress: Progress, clock: Clock, found: Checkpoint | None, attempt: Attempt
    ) -> None:
        self.args, self.progress, self.clock, self.found, self.attempt = args, progress, clock, found, attempt
        self.run_dir = Path(args.swe_run_dir)
        self.weights_dir = self.run_dir / "weights"
        self.journal = Journal(self.run_dir / METRICS)
        self.configuration = checkpoint.configuration(args)
        _fix_numerics(args)
        self.hooks = Hooks.load(args)
        self.eval_tasks = load_evaluation_tasks(args)
        self.data_source: Any = self.hooks.data_source(args)
        self.trainer = Trainer(args, found.model_dir if found else None)
        self.schedule = SCHEDULES[getattr(args, "swe_schedule", SYNC)]
        self.server: ServerProcess | None = None
        self.first = found.state.rollout_id + 1 if found else 0
        self.recorded = clock.snapshot()
        opening = Opening(self.run_dir, getattr(args, "swe_project", ""), self.configuration)
        self.trackers = Trackers(getattr(args, "swe_trackers", ()), opening)
        if found is not None:
            self.trainer.load_state(found.optimizer_state())
            try:
                self.data_source.load(found.state.rollout_id)
            except UserError as error:
                why = f"{error}. To go on from the checkpoint before it, remove {found.path}"
                raise ResumeError(why) from error
            found.restore_random()

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the server, unless one is given, and bring it to the policy's weights."""
        args = self.args
        stack.callback(self.trackers.close, HURRIED)  # where the run fails; it closed them before where it ended
        if not args.sglang_router_ip:
            server = ServerProcess.of_run(args, self.run_dir / "server.log")
            self.server = await stack.enter_async_context(server)
            args.sglang_router_ip, args.sglang_router_port = server.host, server.port
        self.driver = await driver_of(args, self.hooks)
        stack.push_async_callback(self.driver.close)
        self._copy_tokenizer()
        if self.found is not None or self.server is None:  # a server that was already there may hold any weights
            await self.sync(self.first - 1)

    async def run(self) -> dict[str, Any]:
        """Make every rollout that is left, between the two evaluations; returns the summary, which is then written."""
        if self.found is None:
            await self.evaluate(-1, "before")
        saves = Saves(self.run_dir)
        for rollout_id in range(self.first, self.args.num_rollout):
            await self.step(rollout_id)
            if saves.after_step().stop and rollout_id + 1 < self.args.num_rollout:
                raise StoppedToResume(rollout_id)
        if self.args.num_rollout:  # else nothing has changed since the evaluation before
            await self.evaluate(self.args.num_rollout - 1, "after")
        records = of_last_attempt(
            self.journal.read(),
            lambda record: tuple(record.get(key) for key in ("kind", "name", "moment", "rollout_id")),
            lambda record: record.get("attempt"),
        )
        report.write_curve(self.run_dir, records)
        summary = report.summarize(self.args, records, self.clock.seconds, self.clock.total())
        summary["trackers_lost"] = self.trackers.close()
        report.write_summary(self.run_dir, summary)
        return summary

    async def step(self, rollout_id: int) -> None:
        """Make one rollout. The checkpoint comes last: a run that is resumed without it cuts away what was written."""
        rollout, metrics, shown = await self.sample(rollout_id)
        metrics |= await self.train(rollout_id, rollout)
        with self.clock.phase("weight_sync"):
            await self.sync(rollout_id)
        record = rollout_record(rollout_id, self.attempt.number, metrics, self._seconds_since_recorded())
        self._record(record, shown)
        self.progress.on_step(record)
        interval, done = self.args.eval_interval, rollout_id + 1
        if interval and done % interval == 0 and done < self.args.num_rollout:
            await self.evaluate(rollout_id, "during")
        with self.clock.phase("checkpoint"):
            self.save(rollout_id)

    async def evaluate(self, rollout_id: int, moment: str) -> None:
        """Play and record each evaluation set; moment: `before` the first rollout, `during`, or `after` the last."""
        for name, tasks in self.eval_tasks.items():
            with self.clock.phase("evaluation"):
                on_episode = partial(self.progress.on_episode, name)
                samples = await self._while_the_server_lives(evaluate(self.driver.evaluator(), tasks, on_episode))
            self.attempt.require_last()
            if self.hooks.log_evaluation is not None:
                self.hooks.log_evaluation(rollout_id, self.args, {name: as_slime(samples)}, {})
            metrics = evaluation_metrics(samples)
            where = {"kind": "eval", "name": name, "moment": moment, "rollout_id": rollout_id}
            where["attempt"] = self.attempt.number
            self._record({**where, **limits(self.args), **metrics, "seconds": self._seconds_since_recorded()})
            self.progress.on_eval(f"{name} {moment}", metrics)

    async def sample(self, rollout_id: int) -> tuple[Rollout, dict[str, Any], list[list[Any]]]:
        """Play a rollout's groups and log them; returns them, metrics, and rows of a few episodes for the trackers."""
        earlier = self.clock.seconds["generation"]
        with self.clock.phase("generation"):
            rollout = await self._while_the_server_lives(self.driver.collect(self.data_source, rollout_id))
        seconds = self.clock.seconds["generation"] - earlier
        samples = flatten(rollout.played)
        self.attempt.require_last()
        self.clock.divide_rollout(seconds, sandbox_share(samples, rollout.reward_seconds))
        logged: dict[str, Any] = rollout.metrics()
        if self.hooks.log is not None:
            self.hooks.log(rollout_id, self.args, samples, logged, seconds)
        shown = rows_of(rollout_id, samples)
        metrics = {name.removeprefix("swe/"): value for name, value in sorted(logged.items())}
        return rollout, episode_metrics(samples) | metrics, shown  # a logging hook of another kind adds no metrics

    async def train(self, rollout_id: int, rollout: Rollout) -> dict[str, float]:
        """Take the optimizer steps on the groups that are kept; returns their metrics."""
        with self.clock.phase("training"):
            data = to_train_data(self.args, flatten(rollout.kept), self.hooks.post_process, rollout.stale_groups)
            if self.schedule.carries:  # episodes go on meanwhile, or their commands end
                steps = await asyncio.to_thread(self.trainer.train, data)
            else:
                steps = self.trainer.train(data)
        self.attempt.require_last()
        append_trained(self.run_dir / TRAINED, trained_samples(rollout_id, self.attempt.number, data, steps))
        return steps.metrics

    async def sync(self, rollout_id: int) -> None:
        """Write the weights and have the server read them, under the rollout's number as their version."""
        with writing(self.weights_dir):
            self.trainer.model.save(self.weights_dir)
        address = self.args.sglang_router_ip, self.args.sglang_router_port
        gate = await gate_of_loop()
        if self.schedule.carries:
            await gate.drain(partial(abort_all, f"http://{address[0]}:{address[1]}"))
        await update_weights(*address, self.weights_dir, rollout_id)
        if self.schedule.in_background:
            gate.open()

    def save(self, rollout_id: int) -> None:
        """Write a checkpoint, of which the data source's own state is a part and comes first."""
        self.attempt.require_last()
        with writing(Path(self.args.save)):
            self.data_source.save(rollout_id)
        sizes = {name: Journal(self.run_dir / name).size() for name in JOURNALS}
        state = checkpoint.State(rollout_id, self.configuration, sizes, self.clock.snapshot(), self.attempt.number)
        best = best_rollout(self.run_dir, getattr(self.args, "swe_keep_best", ""))
        checkpoint.save(
            Path(self.args.save),
            state,
            self.weights_dir,
            self.trainer.save_state(),
            keep=self.args.swe_keep_checkpoints,
            best=best,
        )

    def _record(self, record: dict[str, Any], episodes: Sequence[Sequence[Any]] = ()) -> None:
        self.journal.append(record)
        self.trackers.log(record["rollout_id"], figures_of(record), episodes)

    def _seconds_since_recorded(self) -> dict[str, float]:
        before, self.recorded = self.recorded, self.clock.snapshot()
        return {name: seconds - before[name] for name, seconds in self.recorded.items()}

    async def _while_the_server_lives(self, playing: Coroutine[Any, Any, T]) -> T:
        return await (self.server.while_alive(playing) if self.server else playing)

    def _copy_tokenizer(self) -> None:
        """Put the tokenizer with the weights, so that what is synced or checkpointed is a whole Hugging Face model."""
        with writing(self.weights_dir):
            shutil.rmtree(self.weights_dir, ignore_errors=True)
            self.weights_dir.mkdir()
            for file in sorted(Path(self.args.hf_checkpoint).iterdir()):
                if file.is_file() and file.suffix not in (".safetensors", ".bin", ".pt"):
                    replace_file(self.weights_dir / file.name, file.read_bytes())


class Progress(Protocol):
    """The loop tells of itself by these calls. A record is a rollout's line of `metrics.jsonl`;
    metrics are what goes into an evaluation's, flat."""

    def on_phase(self, name: str) -> None: ...

    def on_episode(self, evaluation: str, done: int, total: int) -> None: ...

    def on_step(self, record: Mapping[str, Any]) -> None: ...

    def on_eval(self, name: str, metrics: Mapping[str, Any]) -> None: ...


# The plug-ins that the training loop calls beside those of a rollout.
@dataclass(frozen=True)
class Hooks(RolloutHooks):
    """SLiME's hooks; signatures are SLiME's. `None` where the run leaves one out."""

    post_process: Callable[..., Any]
    data_source: Callable[..., Any]
    log: Callable[..., Any] | None
    log_evaluation: Callable[..., Any] | None

    @classmethod
    def found(cls, args: Any) -> dict[str, Any]:
        return {
            **super().found(args),
            "post_process": required_hook(args, "custom_reward_post_process_path"),
            "data_source": required_hook(args, "data_source_path"),
            "log": optional_hook(args, "custom_rollout_log_function_path"),
            "log_evaluation": optional_hook(args, "custom_eval_rollout_log_function_path"),
        }


# A run's wall time: seconds by phase, kept over resumptions.
PHASES = ("startup", "evaluation", "generation", "sandbox", "training", "weight_sync", "checkpoint")


class Clock:
    """`Clock` adds up wall seconds by phase. Phases don't nest: one ends before the next begins."""

    def __init__(self, on_phase: Callable[[str], None], earlier: Mapping[str, float] | None = None) -> None:
        earlier = earlier or {}
        self.seconds: dict[str, float] = {name: earlier.get(name, 0.0) for name in PHASES}
        self._earlier = earlier.get("total", 0.0)
        self._on_phase = on_phase
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._on_phase(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def total(self) -> float:
        """Add up wall seconds of this process and of those that the run was resumed from, to their last checkpoint."""
        return self._earlier + time.perf_counter() - self._started

    def snapshot(self) -> dict[str, float]:
        return self.seconds | {"total": self.total()}

    def divide_rollout(self, wall: float, sandbox_share: float) -> None:
        """Move the sandboxes' part of a rollout's wall time out of `generation`, where it was counted."""
        self.seconds["generation"] -= wall * sandbox_share
        self.seconds["sandbox"] += wall * sandbox_share


def sandbox_share(samples: Sequence[Sample], reward_seconds: float) -> float:
    """Return the share of the episodes' own time that they waited for sandboxes, grading included, not for the engine.

    Episodes run concurrently, so a rollout's wall time has no exact split; this is the share by episode time.
    """
    sandbox, engine = reward_seconds, 0.0
    for segments in trajectories(samples):
        record = episode_of(segments[0])
        if record:
            sandbox += record.timings.sandbox
            engine += record.timings.engine
    return sandbox / (sandbox + engine) if sandbox + engine > 0 else 0.0


def _fix_numerics(args: Namespace) -> None:
    """Set threads, algorithms and generators, so that a run is a function of its arguments."""
    set_threads(args.swe_threads)
    torch.set_deterministic_debug_mode("warn")  # as use_deterministic_algorithms, which imports the compiler
    # A debugging aid that comes with it and costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(args.seed)
    random.seed(args.seed)
