"""SLiME's rollout hooks: `generate` runs one episode, `log_rollout` and `log_evaluation` write the results."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slime_swe.data_sources.slime_plugin import TaskDataSource, task_of
from slime_swe.dotted import PACKAGES, module_of
from slime_swe.rollout.client import SESSION, Sampling
from slime_swe.rollout.collect import Driver, driver_of
from slime_swe.rollout.evaluation import as_slime, evaluate, load_evaluation_tasks
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.logprob_gap import GapCheck
from slime_swe.rollout.loop_scope import agent_for, gate_of_loop, opened_once, sandboxes_for
from slime_swe.rollout.metrics import episode_metrics
from slime_swe.rollout.play import Group, gather, run_episode
from slime_swe.rollout.records import EPISODES, EVALUATIONS, flatten, to_samples
from slime_swe.rollout.retention import remove_old
from slime_swe.rollout.run_record import RunRecord, evaluated_after, log_table
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sample import Sample

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass
class _TrainOutput:
    """The result of a rollout function: groups of samples, and metrics."""

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@dataclass
class _EvalOutput:
    """The result of a rollout function for an evaluation: SLiME's figures and samples by set."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


if TYPE_CHECKING:
    RolloutFnTrainOutput = _TrainOutput
    RolloutFnEvalOutput = _EvalOutput
    run = _run
else:
    _theirs = module_of("rollout.base_types")
    if _theirs is None:
        RolloutFnTrainOutput, RolloutFnEvalOutput, run = _TrainOutput, _EvalOutput, _run
    else:  # the train loop's own types, and the event loop that lives as long as the run
        RolloutFnTrainOutput, RolloutFnEvalOutput = _theirs.RolloutFnTrainOutput, _theirs.RolloutFnEvalOutput
        run = module_of("utils.async_utils").run


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Run the agent on `sample.metadata["task"]` (`--custom-generate-function-path`).

    Returns the sample, filled, or a list of siblings if the episode became several segments. This is one attempt: a
    sample whose episode infrastructure broke comes back ABORTED, and it is for the rollout function to try it again.
    """
    settings = RolloutSettings.from_args(args).of(evaluation=evaluation)
    task = task_of(sample)
    agent, sandboxes = await agent_for(settings), await sandboxes_for(settings)
    (await gate_of_loop()).stop_when(_aborted_by_slime)
    # SLiME's router keeps an episode on the engine that has its prefix cached, if each request names its episode.
    named = getattr(sample, "session_id", None) or getattr(sample, "routing_key", None)  # as miles calls it
    headers = {SESSION: named} if named else None
    grammar = settings.grammar_of(evaluation=evaluation)
    key = (settings.seed, evaluation, sample.index, 0) if settings.deterministic else None  # the same in each attempt
    episode = await run_episode(
        agent,
        task,
        sandboxes,
        Sampling(sampling_params, key, headers, grammar),
        time_budget=settings.time_budget,
        wall_time_budget=settings.wall_time_budget,
    )
    samples = to_samples(
        args,
        sample,
        episode,
        agent.decode,
        placeholder=agent.placeholder_token,
        evaluation=evaluation,
        masked=settings.mask_truncated,
    )
    return samples[0] if len(samples) == 1 else samples


def _aborted_by_slime() -> bool:
    """Say whether the train loop's own rollout function, if it calls `generate`, has its batch and wants no more."""
    loaded = [sys.modules.get(f"{package}.rollout.sglang_rollout") for package in PACKAGES]
    states = [theirs.GenerateState._instances.get(theirs.GenerateState) for theirs in loaded if theirs]
    return any(state is not None and state.aborted for state in states)


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Return the groups of one training step, as many as `--rollout-batch-size` says, or an evaluation of all sets
    (`--rollout-function-path`, `--eval-function-path`).

    Groups that the filter drops are replaced. An evaluation's sets are `args.swe_eval_tasks`, not SLiME's datasets.
    Checkpoints and exports that need not stay are removed before: see `retention.remove_old`. `run_record` has what is
    left for those who watch the run.
    """
    if evaluation:
        return run(_evaluate(args, rollout_id))
    remove_old(args, rollout_id)
    return run(_collect(args, rollout_id, data_source))


async def _collect(args: Any, rollout_id: int, data_source: Any) -> RolloutFnTrainOutput:
    driver, record, started = await driver_for(args), await _record_of(args), time.perf_counter()
    check = await opened_once(("gap", args.swe_run_dir), lambda: nullcontext(GapCheck(args)))
    record.status.on_phase("generation")
    check.start()
    try:
        rollout = await driver.collect(data_source, rollout_id)
        seconds = time.perf_counter() - started
        gap = await check.finish()
    finally:
        check.cancel()
    check.keep(rollout_id, flatten(rollout.kept))
    figures = record.on_rollout(rollout_id, rollout, seconds, gap)
    _save_ahead(data_source, rollout_id)
    record.status.on_phase("training")
    return RolloutFnTrainOutput(as_groups(rollout.kept), figures)


def _save_ahead(data_source: Any, rollout_id: int) -> None:
    """Save the state of our data source. A disk that is full ends the run where it saves, not here."""
    if isinstance(data_source, TaskDataSource):
        try:
            data_source.save_ahead(rollout_id)
        except OSError as error:
            _log.warning("the data source's state after rollout %d: %s", rollout_id + 1, error)


def as_groups(played: Sequence[Group]) -> list[list[Sample]]:
    """Return each group's samples, those of an episode of several beside the others: SLiME and miles flatten what is
    nested alike throughout, and break where one episode is a list and another is not."""
    return [flatten(group) for group in played]


async def _evaluate(args: Any, rollout_id: int) -> RolloutFnEvalOutput:
    driver, record = await driver_for(args), await _record_of(args)
    record.status.on_phase("evaluation")
    player, tasks = driver.evaluator(), load_evaluation_tasks(args)
    played = await gather(evaluate(player, each) for each in tasks.values())
    sets = dict(zip(tasks, played, strict=True))
    record.on_evaluation(rollout_id, sets)
    record.status.on_phase("training")
    figures = dict[str, Any]()  # which `log_evaluation` fills: without one SLiME would log its own alone
    return RolloutFnEvalOutput({name: as_slime(samples) for name, samples in sets.items()}, figures)


async def _record_of(args: Any) -> RunRecord:
    """Return the running loop's record of this run."""
    return await opened_once(("record", args.swe_run_dir), lambda: nullcontext(RunRecord(args)))


async def driver_for(args: Any) -> Driver:
    """Return the running loop's driver of this run."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Driver]:
        driver = await driver_of(args, RolloutHooks.load(args))
        try:
            yield driver
        finally:
            await driver.close()

    return await opened_once(("driver", args.swe_run_dir), opened)


def log_rollout(
    rollout_id: int, args: Any, samples: Any, rollout_extra_metrics: dict[str, Any] | None, rollout_time: float
) -> bool:
    """Append the trajectories to `episodes.jsonl` and add our metrics (`--custom-rollout-log-function-path`).

    The metrics go into `rollout_extra_metrics`. Returns False, which makes SLiME log them afterwards. A table of a few
    episodes goes to Weights & Biases.
    """
    flat, key = flatten(samples), getattr(args, "reward_key", None)
    path = Path(args.swe_run_dir) / EPISODES  # there is no router where SLiME trains on dumped rollouts
    append_records(path, flat, key, rollout_id=rollout_id, attempt=getattr(args, "swe_attempt", None))
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update({f"swe/{name}": value for name, value in episode_metrics(flat, key).items()})
    log_table(args, rollout_id, flat)
    return False


def log_evaluation(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: dict[str, Any] | None = None
) -> bool:
    """Append an evaluation to `evaluations.jsonl` and add our metrics (`--custom-eval-rollout-log-function-path`).

    The metrics go into `extra_metrics`. Returns False, which makes SLiME log them afterwards. The evaluation before the
    first rollout is recorded as that of rollout -1. SLiME calls it 0 too.
    """
    path, key = Path(args.swe_run_dir) / EVALUATIONS, getattr(args, "reward_key", None)
    rollout_id = evaluated_after(path.parent, rollout_id)
    for name, result in data.items():
        flat = flatten(result.get("samples") or [])
        attempt = getattr(args, "swe_attempt", None)
        append_records(path, flat, key, rollout_id=rollout_id, dataset=name, attempt=attempt)
        if extra_metrics is not None:
            figures = episode_metrics(flat, key)
            extra_metrics.update({f"eval/{name}/swe/{figure}": value for figure, value in figures.items()})
    return False
