"""SLiME's reward hooks: grade an episode, turn rewards into advantages, and drop groups without a learning signal."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from slime_swe.data_sources.slime_plugin import task_of
from slime_swe.dotted import load_object, module_of
from slime_swe.errors import UserError
from slime_swe.fields import read_arguments
from slime_swe.rewards.advantages import Row, segment_advantages
from slime_swe.rewards.compose import Composition, composed
from slime_swe.rewards.grade import GraderError, GradingSettings
from slime_swe.rewards.score_cache import score_of
from slime_swe.rollout.hooks import A_REWARD, shown
from slime_swe.rollout.loop_scope import sandboxes_for
from slime_swe.rollout.metrics import INFORMATIVE, group_outcome
from slime_swe.rollout.records import (
    EpisodeRecord,
    Score,
    episode_of,
    flatten,
    record_of,
    reward_of,
    trajectories,
    trajectory_of,
    write_failure,
    write_score,
)
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sample import Sample

LIKENESS = "slime_swe.rewards.diff.likeness"  # by name: only runs that weigh it need its library


@dataclass
class _FilterOutput:
    """The answer of a group filter. `keep_when_insufficient`: a dropped group may still fill a batch that would
    otherwise need another round of sampling.
    """

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


if TYPE_CHECKING:
    DynamicFilterOutput = _FilterOutput
else:
    _theirs = module_of("rollout.filter_hub.base_types")  # the train loop checks for its own type
    DynamicFilterOutput = _theirs.DynamicFilterOutput if _theirs else _FilterOutput


async def reward(args: Any, sample: Sample | list[Sample], **kwargs: Any) -> float | list[float]:
    """Grade the patch in `sample.metadata["episode"]` (`--custom-rm-path`). A list may hold several samples of one
    episode, which is graded once.

    Sets `metadata["score"]`. The sample becomes ABORTED with reward 0.0 if the grader fails, which is asked once, or if
    the rollout produced no episode. Raises `UserError` for a finished sample without an episode.
    """
    samples = flatten(sample)
    await asyncio.gather(*(_reward_episode(args, segments) for segments in trajectories(samples)))
    values = [_value(args, each) for each in samples]
    return values if isinstance(sample, list) else values[0]


def post_process(args: Any, samples: list[Sample] | list[list[Sample]]) -> tuple[list[float], list[float]]:
    """Return raw rewards and advantages (`--custom-reward-post-process-path`), grouped by `group_index` alone.

    An episode that is left out of the loss for its stop reason counts in its group's baseline, as its reward is known.
    With `rewards_normalization` off the second list is the raw rewards, except 0.0 for infrastructure failures.
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
    """Keep a group whose episodes differ in the binary outcome (`--dynamic-sampling-filter-path`): see `group_outcome`,
    which also names the reason why another is dropped.
    """
    outcome = group_outcome(record_of(sample, args.reward_key) for sample in flatten(list(samples)))
    informative = outcome == INFORMATIVE
    return DynamicFilterOutput(keep=informative, reason=None if informative else outcome)


async def _reward_episode(args: Any, segments: list[Sample]) -> None:
    if any(segment.status == Sample.Status.ABORTED for segment in segments):
        for segment in segments:
            segment.reward = 0.0
        return
    episode = episode_of(segments[0])
    if episode is None:
        status = segments[0].status
        if status not in (Sample.Status.PENDING, Sample.Status.FAILED):
            raise UserError(
                f"sample {segments[0].index} is {status.value} but has no metadata['episode'], whose patch is graded: "
                "a generate function of your own must set it as slime_swe.rollout.slime_plugin.generate does, or come "
                "with a reward function of its own"
            )
        for segment in segments:
            write_failure(segment, "no_episode", f"the rollout left the sample {status.value}")
        return
    settings, grading = RolloutSettings.from_args(args), read_arguments(GradingSettings, args)
    composition = read_arguments(Composition, args)
    try:
        score = await _score(settings, grading, composition, segments[0], episode)
    except GraderError as error:
        for segment in segments:
            write_failure(segment, "grader_error", str(error))
        return
    write_score(segments, composed(score, segments, episode, composition))


async def _score(
    settings: RolloutSettings,
    grading: GradingSettings,
    composition: Composition,
    sample: Sample,
    episode: EpisodeRecord,
) -> Score:
    """Score the final patch, with its likeness to the gold patch where that is a component; of an evaluation, also
    whether the first edit alone had solved the task."""
    task, sandboxes = task_of(sample), await sandboxes_for(settings.of(evaluation=episode.evaluation))
    score = await score_of(task, episode.patch, sandboxes, settings.sandbox, grading)
    if "diff" in composition.weights and not score.solved:
        alike = await asyncio.to_thread(load_object(LIKENESS, "reward.weights"), task, episode.patch)
        score = msgspec.structs.replace(score, evidence=score.evidence | {"likeness": alike})
    if not episode.evaluation:
        return score
    first = episode.counters.first_edit_patch
    same = first == episode.patch
    alone = score if same else await score_of(task, first or "", sandboxes, settings.sandbox, grading)
    return msgspec.structs.replace(score, first_edit_solved=alone.solved)


def _excluded(sample: Sample) -> bool:
    """Say whether a sample is in no baseline: its reward is not known, or nothing sampled could have earned it."""
    return sample.status == Sample.Status.ABORTED or (sample.remove_sample and not _masked(sample))


def _masked(sample: Sample) -> bool:
    episode = episode_of(sample)
    return episode is not None and episode.masked


def _value(args: Any, sample: Sample) -> float:
    """Return a reward, 0.0 for what SLiME aborted before our plug-in saw it. Raises `UserError` if it is no number."""
    if sample.reward is None:
        return 0.0
    value = reward_of(sample, args.reward_key)
    if value is None or not math.isfinite(value):
        raise UserError(f"reward.function gave {shown(sample.reward)} for sample {sample.index}: {A_REWARD}")
    return value
