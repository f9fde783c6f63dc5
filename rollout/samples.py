"""Turn an `Episode` into what the trainer receives: one SLiME `Sample` for each of its segments."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from slime_swe.rollout.episode import TRUNCATED, Episode, Segment
from slime_swe.rollout.records import trajectory_of, write_episode, write_failure, write_turns, write_version_spans
from slime_swe.rollout.replies import part_of
from slime_swe.rollout.turns import read_blank, up_to
from slime_swe.sample import Sample, set_routed_experts

MAX_SEGMENTS = 4096  # of one episode, so that sibling indices can't meet


def to_samples(
    args: Any,
    sample: Sample,
    episode: Episode,
    decode: Callable[[Sequence[int]], str],
    *,
    placeholder: int | None,
    evaluation: bool = False,
    masked: Collection[str] = (),
) -> list[Sample]:
    """Return `sample`, filled, and for every further segment a sibling with the same `rollout_id` and `group_index`.

    Siblings get negative indices, unique over the run. An episode without a sampled token becomes one sample with one
    masked `placeholder` token, since an empty response breaks the trainer's batch; where that is None, without tokens.
    An infrastructure failure is marked ABORTED with reward 0.0 and `remove_sample`; its metadata says what failed. An
    episode that ended for one of the stop reasons in `masked` has `remove_sample` too, and its record says so: out of
    the loss, but not of the baseline.
    """
    segments = episode.segments or (_nothing_sampled(args, placeholder),)
    assert len(segments) <= MAX_SEGMENTS, f"an episode of {len(segments)} segments"
    rollout_id = trajectory_of(sample)
    masks = [segment.loss_mask for segment in segments]
    is_masked = not evaluation and leaves_out(masks, episode.stop_reason.value, masked)
    write_episode(sample, episode, evaluation, masked=is_masked)
    metadata = sample.metadata
    samples = []
    for number, segment in enumerate(segments):
        made = sample if number == 0 else copy.copy(sample)
        made.rollout_id = rollout_id
        if number > 0 and sample.index is not None:
            made.index = sibling_index(sample.index, number)
        made.metadata = dict(metadata)
        _fill(args, made, _without_tail(segment), decode)
        _judge(made, episode, is_masked)
        samples.append(made)
    return samples


def sibling_index(index: int, number: int) -> int:
    """Return the index of the sibling of that number, from 1, behind the sample of this index."""
    return -(1 + index * MAX_SEGMENTS + number)


def leaves_out(masks: Iterable[Sequence[int]], stop_reason: str, masked: Collection[str]) -> bool:
    """Say whether an episode that has something to train is left out of the loss for its stop reason. masks: its
    segments' loss masks."""
    return stop_reason in masked and any(any(mask) for mask in masks)


def is_removed(loss_mask: Sequence[int] | None, masked: bool) -> bool:
    """Return `remove_sample` of a segment, given whether its episode is left out."""
    return masked or not any(loss_mask or ())


def _nothing_sampled(args: Any, placeholder: int | None) -> Segment:
    """Make a segment of two tokens, neither of them trained; of none without a `placeholder`. With routing replay the
    first has experts, as every sample must. Any experts will do except a table of zeros, which SLiME takes as a sign
    that the server returned none.
    """
    if placeholder is None:
        return Segment([], [], [], 0)
    routes: tuple[bytes, ...] = ()
    if getattr(args, "use_rollout_routing_replay", False):
        routes = ((array("i", range(args.moe_router_topk)) * args.num_layers).tobytes(),)
    return Segment([placeholder, placeholder], [0, 0], [0.0, 0.0], 1, routed_experts=routes)


def _fill(args: Any, sample: Sample, segment: Segment, decode: Callable[[Sequence[int]], str]) -> None:
    start = segment.prompt_length
    sample.tokens = segment.tokens
    sample.response = decode(segment.tokens[start:])
    sample.response_length = len(segment.tokens) - start
    sample.loss_mask = segment.loss_mask[start:]
    sample.rollout_log_probs = segment.log_probs[start:]
    sample.weight_versions = segment.weight_versions
    write_version_spans(sample, part_of(segment.version_spans, start, len(segment.tokens)))
    write_turns(sample, read_blank(segment.turns, segment.tokens, decode), segment.tools)
    sample.rollout_routed_experts = None
    if segment.routed_experts:
        size = 4 * args.num_layers * args.moe_router_topk * (len(segment.tokens) - 1)
        table = b"".join(segment.routed_experts)[:size]
        set_routed_experts(args, sample, table)


def _judge(sample: Sample, episode: Episode, masked: bool) -> None:
    reason = episode.stop_reason
    sample.remove_sample = is_removed(sample.loss_mask, masked)
    sample.reward = None
    sample.status = Sample.Status.TRUNCATED if reason in TRUNCATED else Sample.Status.COMPLETED
    sample.non_generation_time = episode.timings.sandbox
    sample.prefix_cache_info = Sample.PrefixCacheInfo(
        cached_tokens=episode.counters.cached_tokens,
        total_prompt_tokens=episode.counters.prompt_tokens,
    )
    if reason.is_infrastructure:
        write_failure(sample, reason.value, episode.detail)


def _without_tail(segment: Segment) -> Segment:
    """Cut the segment behind its last sampled token: context after that teaches nothing and costs compute."""
    last = max((i for i, trained in enumerate(segment.loss_mask) if trained), default=len(segment.tokens) - 1)
    last = max(last, segment.end - 1)
    kept = {name: getattr(segment, name)[: last + 1] for name in ("tokens", "loss_mask", "log_probs")}
    return replace(
        segment,
        **kept,
        version_spans=part_of(segment.version_spans, 0, last + 1),
        turns=tuple(up_to(segment.turns, last + 1)),
    )
