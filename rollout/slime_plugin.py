"""SLiME's rollout hooks: `generate` runs one episode, `log_rollout` and `log_evaluation` write what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from data_sources.sample import Sample
from data_sources.slime_plugin import task_of
from rollout.episode import Episode
from rollout.metrics import episode_metrics
from rollout.records import append_records, flatten
from rollout.resources import agent_for, sandboxes_for
from rollout.runner import run_episode
from rollout.samples import to_samples
from rollout.sampling import Sampling
from rollout.settings import RolloutSettings

_PAUSE = 0.2  # seconds before an episode that infrastructure broke is tried again; doubles each time


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Run the agent on `sample.metadata["task"]` (`--custom-generate-function-path`).

    Returns the sample, filled; a list of siblings where the episode became several segments. An episode that
    infrastructure broke is tried again up to `swe_max_attempts` times in all, and then comes back ABORTED.
    """
    settings = RolloutSettings.from_args(args)
    task = task_of(sample)
    agent, sandboxes = await agent_for(settings), await sandboxes_for(settings)
    for attempt in range(settings.max_attempts):
        sampling = _sampling(settings, sample, sampling_params, attempt, evaluation)
        episode = await run_episode(agent, task, sandboxes, sampling, time_budget=settings.time_budget)
        if not _worth_another(episode) or attempt == settings.max_attempts - 1:
            break
        await asyncio.sleep(_PAUSE * 2**attempt)
    samples = to_samples(
        args, sample, episode, agent.decode, placeholder=agent.placeholder_token, evaluation=evaluation
    )
    return samples[0] if len(samples) == 1 else samples


def log_rollout(
    rollout_id: int, args: Any, samples: Any, rollout_extra_metrics: dict[str, Any] | None, rollout_time: float
) -> bool:
    """Append the trajectories to `episodes.jsonl` and add our metrics (`--custom-rollout-log-function-path`).

    The metrics go into `rollout_extra_metrics`, which SLiME logs afterwards, as False asks it to.
    """
    flat = flatten(samples)
    append_records(RolloutSettings.from_args(args).run_dir / "episodes.jsonl", flat, {"rollout_id": rollout_id})
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update({f"swe/{name}": value for name, value in episode_metrics(flat).items()})
    return False


def log_evaluation(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: dict[str, Any] | None = None
) -> bool:
    """The same for evaluations (`--custom-eval-rollout-log-function-path`), into `evaluations.jsonl`."""
    path = RolloutSettings.from_args(args).run_dir / "evaluations.jsonl"
    for name, result in data.items():
        flat = flatten(result.get("samples") or [])
        append_records(path, flat, {"rollout_id": rollout_id, "dataset": name})
        if extra_metrics is not None:
            extra_metrics.update({f"eval/{name}/swe/{key}": value for key, value in episode_metrics(flat).items()})
    return False


def _sampling(
    settings: RolloutSettings, sample: Sample, params: Mapping[str, Any], attempt: int, evaluation: bool
) -> Sampling:
    key = (settings.seed, evaluation, sample.index, attempt) if settings.deterministic else None
    # SLiME's router keeps an episode on the engine that has its prefix cached when it is told which episode it is.
    headers = {"X-SMG-Routing-Key": sample.session_id} if sample.session_id else None
    return Sampling(params, key, headers)


def _worth_another(episode: Episode) -> bool:
    return episode.stop_reason.is_infrastructure and not episode.counters["engine_aborted"]
