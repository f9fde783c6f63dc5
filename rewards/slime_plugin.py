"""SLiME's reward hooks: grade an episode, turn rewards into advantages, and drop groups that teach nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from data_sources.sample import Sample
from data_sources.slime_plugin import task_of
from rewards.advantages import Row, segment_advantages
from rewards.filter_output import DynamicFilterOutput
from rewards.grade import HarnessSettings, grade
from rewards.score import GraderError, Score
from rewards.verdict import Mode
from rollout.records import flatten, trajectory_of
from rollout.resources import sandboxes_for
from rollout.samples import mark_infrastructure_failure
from rollout.settings import RolloutSettings


class EpisodeError(ValueError):
    """A sample that has been rolled out holds no episode to grade."""


async def reward(args: Any, sample: Sample | list[Sample], **kwargs: Any) -> float | list[float]:
    """Grade the patch in `sample.metadata["episode"]` (`--custom-rm-path`); of a list, each trajectory once.

    Sets `metadata["score"]`. A grader that fails `swe_max_attempts` times makes the sample ABORTED with reward 0.0, and
    so does a rollout that did not come to an episode. Raises `EpisodeError` for a finished sample without one.
    """
    if isinstance(sample, Sample):
        return (await _reward_all(args, [sample]))[0]
    return await _reward_all(args, sample)


def post_process(args: Any, samples: list[Sample] | list[list[Sample]]) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages (`--custom-reward-post-process-path`), grouped by `group_index` alone.

    With `rewards_normalization` off the second list is the raw rewards, still 0.0 for what infrastructure broke.
    """
    flat = flatten(samples)
    raw = [_value(args, sample) for sample in flat]
    excluded = [_excluded(sample) for sample in flat]
    if not getattr(args, "rewards_normalization", True):
        return raw, [0.0 if out else value for value, out in zip(raw, excluded, strict=True)]
    rows = [
        Row(sample.group_index, trajectory_of(sample), value, out)
        for sample, value, out in zip(flat, raw, excluded, strict=True)
    ]
    return raw, segment_advantages(rows, normalize_std=bool(getattr(args, "grpo_std_normalization", True)))


def keep_group(args: Any, samples: Sequence[Sample] | Sequence[list[Sample]], **kwargs: Any) -> DynamicFilterOutput:
    """Keep a group whose episodes differ in the binary outcome (`--dynamic-sampling-filter-path`).

    What infrastructure broke has no say. A group that is dropped may still fill a batch that would else need another
    round of sampling; its advantages are then zero or come from shaped rewards alone.
    """
    outcomes = {trajectory_of(s): _outcome(args, s) for s in flatten(list(samples)) if not _excluded(s)}
    values = set(outcomes.values())
    if len(values) > 1:
        return DynamicFilterOutput(keep=True)
    reason = f"all_{'solved' if values.pop() else 'unsolved'}" if values else "all_infrastructure_failures"
    return DynamicFilterOutput(keep=False, reason=reason, keep_when_insufficient=True)


async def _reward_all(args: Any, samples: list[Sample]) -> list[float]:
    episodes: dict[Any, list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((sample.group_index, trajectory_of(sample)), []).append(sample)
    await asyncio.gather(*(_reward_episode(args, segments) for segments in episodes.values()))
    return [_value(args, sample) for sample in samples]


async def _reward_episode(args: Any, segments: list[Sample]) -> None:
    if any(segment.status == Sample.Status.ABORTED for segment in segments):
        for segment in segments:
            segment.reward = 0.0
        return
    if "episode" not in segments[0].metadata:
        _without_episode(segments)
        return
    settings = RolloutSettings.from_args(args)
    for attempt in range(settings.max_attempts):
        try:
            score = await _score(settings, segments[0])
            break
        except GraderError as error:
            if attempt == settings.max_attempts - 1:
                for segment in segments:
                    mark_infrastructure_failure(segment, "grader_error", str(error))
                return
    for segment in segments:
        segment.metadata = {**segment.metadata, "score": score}
        segment.reward = score["value"]


def _without_episode(segments: Sequence[Sample]) -> None:
    status = segments[0].status
    if status not in (Sample.Status.PENDING, Sample.Status.FAILED):
        raise EpisodeError(
            f"sample {segments[0].index} is {status.value} but has no metadata['episode'], whose patch is graded: a "
            "generate function of your own must set it as rollout.slime_plugin.generate does, or come with a reward "
            "function of its own"
        )
    for segment in segments:
        mark_infrastructure_failure(segment, "no_episode", f"the rollout left the sample {status.value}")


async def _score(settings: RolloutSettings, sample: Sample) -> dict[str, Any]:
    """The final patch's score; of an evaluation, also whether the first edit alone had solved the task."""
    task, sandboxes, mode = task_of(sample), await sandboxes_for(settings), cast(Mode, settings.reward_mode)
    harness = HarnessSettings(settings.harness_python, settings.harness == "official")
    episode = sample.metadata["episode"]
    score = await grade(task, episode["patch"], sandboxes, mode, harness)
    record = _as_dict(score)
    if episode.get("evaluation"):
        first = episode["counters"].get("first_edit_patch")
        same = first == episode["patch"]
        first_score = score if same else await grade(task, first or "", sandboxes, mode, harness)
        record["first_edit_solved"] = first_score.solved
    return record


def _as_dict(score: Score) -> dict[str, Any]:
    return {
        "value": score.value,
        "solved": score.solved,
        "components": dict(score.components),
        "evidence": dict(score.evidence),
    }


def _excluded(sample: Sample) -> bool:
    return sample.status == Sample.Status.ABORTED or sample.remove_sample


def _value(args: Any, sample: Sample) -> float:
    if sample.reward is None:
        return 0.0  # aborted by SLiME itself, before our plug-in saw it
    return float(sample.get_reward_value(args))


def _outcome(args: Any, sample: Sample) -> bool:
    """Solved or not; of a reward function that records no score, whether the reward is positive."""
    score = sample.metadata.get("score")
    return bool(score["solved"]) if score else _value(args, sample) > 0
