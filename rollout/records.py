"""The record of an episode: its fields in a sample's metadata and in a line of a run's journals.

The rollout hook writes what the agent did, the reward hook writes the score, and each writes where infrastructure
failed. Metrics, reports and viewers read the record through this module; no other module spells these keys.
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr

from slime_swe.data_sources.slime_plugin import named, task_id_of
from slime_swe.errors import UserError
from slime_swe.journal import as_json
from slime_swe.rollout.episode import TRUNCATED, Counters, Episode, Segment, Timings, Turn, read_blank, up_to
from slime_swe.rollout.replies import VersionSpan, part_of
from slime_swe.sample import Sample, set_routed_experts

EPISODES, EVALUATIONS, METRICS = "episodes.jsonl", "evaluations.jsonl", "metrics.jsonl"  # the journals of a run
TRAINING = "train"  # the name of the set whose episodes are trained on, beside those of evaluations
# The keys in a sample's metadata and in a journal's line.
_EPISODE, _SCORE, _FAILURE, _SPANS = "episode", "score", "infrastructure", "version_spans"
TURNS, TOOLS = "turns", "tools"
_OF_EPISODE = (_SCORE, _FAILURE, _SPANS, TURNS, TOOLS)  # what an earlier episode may have left
TEXTS = ("response", _EPISODE, _SCORE, _FAILURE, TURNS)  # of a line: where a secret may be

T = TypeVar("T")
Outcome = Literal["broken", "solved", "not solved"]


class EpisodeRecord(msgspec.Struct, frozen=True):
    """The record of what the agent did. A user's own generate function must give the patch; all else is optional."""

    patch: str
    stop_reason: str = ""
    detail: str = ""  # the error behind an infrastructure failure
    turns: int = 0
    counters: Counters = Counters()
    timings: Timings = Timings()
    evaluation: bool = False
    masked: bool = False  # out of the loss for its stop reason (`rollout.mask_truncated`), though it has a reward


class Score(msgspec.Struct, frozen=True):
    """The score of a patch: what it is worth, what that is made of, and the evidence behind it.

    `solved` is the binary outcome that groups are filtered on, whatever shape `value` has, unless the oracle grades by
    a degree: then a group teaches whose values lie further apart than `spread`, which is None for all others.
    `first_edit_solved` is the outcome of the first edit alone, in evaluations.
    """

    solved: bool
    value: float = 0.0
    components: dict[str, float] = {}
    evidence: dict[str, Any] = {}
    first_edit_solved: bool | None = None
    spread: float | None = None


class Failure(msgspec.Struct, frozen=True):
    """A failure other than the policy's: a stop reason or another short name, and the error's text."""

    where: str = ""
    detail: str = ""


class Record(msgspec.Struct, frozen=True):
    """One sample of an episode: its whole record. Journals hold one a line, under these names.

    `trajectory` names the episode: the siblings of one fan-out share it. `loss_mask` and `log_probs` have length
    `response_length`, and `version_spans` cover as many tokens. A record with tokens always has a `loss_mask`, of ones
    where none was given, as in training. `reward` is None where none was given. `turns` are
    placed in `tokens`; None where nobody recorded them. `tools` names the list of tools that was offered
    (`rollout.journals.read_tools`).
    """

    index: int | None
    group_index: int | None
    trajectory: int | None
    task: str | None
    status: str
    reward: float | None
    remove_sample: bool = False
    tokens: list[int] = []
    response_length: int = 0
    loss_mask: list[int] | None = None
    log_probs: list[float] | None = None
    weight_versions: list[str] = []
    version_spans: list[VersionSpan] | None = None
    response: str = ""
    turns: list[Turn] | None = None
    tools: str | None = None
    episode: EpisodeRecord | None = None
    score: Score | None = None
    infrastructure: Failure | None = None
    rollout_id: int | None = None  # in journals
    dataset: str | None = None  # in the journal of evaluations
    attempt: int | None = None  # of the run, in journals: which of its starts wrote this

    def __post_init__(self) -> None:
        """Fill in a missing loss mask. Raises `ValueError` for lengths that do not fit."""
        length, tokens = self.response_length, len(self.tokens)
        if self.loss_mask is None and tokens:
            force_setattr(self, "loss_mask", [1] * length)
        if self.loss_mask is None:
            return
        if not 0 <= length <= tokens:
            raise ValueError(f"the response has {length} tokens, and the sample {tokens}")
        if len(self.loss_mask) != length:
            raise ValueError(f"loss_mask has {len(self.loss_mask)} values, and the response {length} tokens")

    @property
    def sampled(self) -> int:
        """The number of tokens that the policy sampled; all of the response where there is no mask."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    @property
    def broken(self) -> bool:
        """True where infrastructure, not the policy, ended the episode."""
        return self.status == Sample.Status.ABORTED.value or self.infrastructure is not None

    @property
    def spread(self) -> float | None:
        """The least by which rewards must lie apart to differ; None where the binary outcome tells them apart. A reward
        function that records no score may give degrees, of which any two differ."""
        return self.score.spread if self.score else 0.0

    @property
    def solved(self) -> bool:
        """The binary outcome. If the reward function records none, a positive reward counts as solved."""
        if self.broken:
            return False
        return self.score.solved if self.score else (self.reward or 0.0) > 0

    @property
    def outcome(self) -> Outcome:
        return "broken" if self.broken else "solved" if self.solved else "not solved"


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """The part of a record that a journal's index has. `sampled` counts the policy's tokens; where they were not
    recorded, the first sample has those of the whole episode."""

    rollout: int | None
    index: int | None
    task: str | None
    outcome: Outcome
    reward: float | None
    turns: int | None
    sampled: int
    stop_reason: str | None
    dataset: str | None
    trajectory: int | None
    attempt: int | None

    @classmethod
    def of(cls, record: Record) -> Summary:
        return cls(
            rollout=record.rollout_id,
            index=record.index,
            task=record.task,
            outcome=record.outcome,
            reward=record.reward,
            turns=record.episode.turns if record.episode else None,
            sampled=sampled_tokens([record]),
            stop_reason=record.episode.stop_reason if record.episode else None,
            dataset=record.dataset,
            trajectory=record.trajectory,
            attempt=record.attempt,
        )


def episode_of(sample: Sample) -> EpisodeRecord | None:
    """Read what the rollout hook recorded; None for nothing. Raises `UserError` where it is malformed."""
    return _part(sample, _EPISODE, EpisodeRecord)


def failure_of(sample: Sample) -> Failure | None:
    return _part(sample, _FAILURE, Failure)


def version_spans_of(sample: Sample) -> list[VersionSpan] | None:
    """Read which weights sampled which tokens of the response; None where nobody recorded it."""
    return _part(sample, _SPANS, list[VersionSpan])


def write_version_spans(sample: Sample, spans: Iterable[VersionSpan]) -> None:
    sample.metadata = {**(sample.metadata or {}), _SPANS: [[version, count] for version, count in spans]}


def turns_of(sample: Sample) -> list[Turn] | None:
    """Read the messages of the sample; None where nobody recorded them."""
    return _part(sample, TURNS, list[Turn])


def write_turns(sample: Sample, turns: Iterable[Turn], tools: Sequence[Mapping[str, Any]]) -> None:
    sample.metadata = {**(sample.metadata or {}), TURNS: msgspec.to_builtins([*turns]), TOOLS: [*tools]}


def write_episode(sample: Sample, episode: Episode, evaluation: bool, *, masked: bool = False) -> None:
    """Record a new episode in the sample's metadata, and remove what an earlier episode left there."""
    kept = {key: value for key, value in (sample.metadata or {}).items() if key not in _OF_EPISODE}
    record = EpisodeRecord(
        episode.patch,
        episode.stop_reason.value,
        episode.detail,
        episode.turns,
        episode.counters,
        episode.timings,
        evaluation,
        masked,
    )
    sample.metadata = {**kept, _EPISODE: msgspec.to_builtins(record)}


def write_score(segments: Iterable[Sample], score: Score) -> None:
    """Record an episode's score in each of its samples, with its value as their reward."""
    record = msgspec.to_builtins(score)
    for name in ("first_edit_solved", "spread"):
        if record[name] is None:
            del record[name]
    for segment in segments:
        segment.metadata = {**(segment.metadata or {}), _SCORE: record}
        segment.reward = score.value


def write_failure(sample: Sample, where: str, detail: str) -> None:
    """Take the sample out of reward, baseline and loss, and record why."""
    sample.status = Sample.Status.ABORTED
    sample.reward = 0.0
    sample.remove_sample = True
    sample.metadata = {**(sample.metadata or {}), _FAILURE: {"where": where, "detail": detail}}


def write_broken_attempts(segments: Iterable[Sample], causes: Iterable[str]) -> None:
    """Count earlier attempts at an episode in the record of each of its samples, by what broke them, beside those that
    the rollout hook has counted. A sample without such a record gets none."""
    counted = Counter(causes)
    for segment in segments:
        record = episode_of(segment)
        if not counted or record is None:
            continue
        given = segment.metadata[_EPISODE]
        broken = dict(counted + Counter(record.counters.broken_attempts))
        counters = {**given.get("counters", {}), "broken_attempts": broken}
        segment.metadata = {**segment.metadata, _EPISODE: {**given, "counters": counters}}


def reward_of(sample: Sample, reward_key: str | None = None) -> float | None:
    """Return the reward as a number; `reward_key` (SLiME's) chooses it where the reward is a mapping."""
    given: Any = sample.reward.get(reward_key) if reward_key and isinstance(sample.reward, dict) else sample.reward
    return number(given)


def number(given: Any) -> float | None:
    """Return a number, also numpy's or torch's, as a float; None for anything else, such as an array of several."""
    try:
        return float(given) if hasattr(given, "__float__") else None
    except (TypeError, ValueError, RuntimeError):
        return None


def record_of(sample: Sample, reward_key: str | None = None) -> Record:
    """Read the sample's record. Raises `UserError` where a hook of the user's own left a malformed one."""
    parts: dict[str, Any] = {
        "episode": episode_of(sample),
        "score": _part(sample, _SCORE, Score),
        "infrastructure": failure_of(sample),
        "version_spans": version_spans_of(sample),
        "turns": turns_of(sample),
    }
    try:
        return Record(**columns_of(sample, reward_key), **parts)
    except ValueError as error:
        raise UserError(f"sample {sample.index}: {error}") from error


def loss_mask_of(sample: Sample) -> list[int]:
    """Return the mask of the response's tokens that are trained, which is all ones where the sample has none."""
    return [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask


def sample_of(record: Record) -> Sample:
    """Rebuild the sample that a journal's line was written of, as the hooks of reward, filter and advantages know it.
    Its prompt, turns and routed experts are not in it, and of its task only the id.
    """
    parts = {_EPISODE: record.episode, _SCORE: record.score, _FAILURE: record.infrastructure}
    metadata = {key: msgspec.to_builtins(part) for key, part in parts.items() if part is not None}
    if record.version_spans is not None:
        metadata[_SPANS] = [[*span] for span in record.version_spans]
    return Sample(
        group_index=record.group_index,
        index=record.index,
        rollout_id=record.trajectory,
        tokens=record.tokens,
        response=record.response,
        response_length=record.response_length,
        reward=record.reward,
        loss_mask=record.loss_mask,
        weight_versions=record.weight_versions,
        rollout_log_probs=record.log_probs,
        remove_sample=record.remove_sample,
        status=Sample.Status(record.status),
        metadata={**named(record.task), **metadata},
    )


def trajectory_of(sample: Sample | Record) -> int | None:
    """Return the id of the episode that a sample belongs to. Samples of one episode share it."""
    if isinstance(sample, Record):
        return sample.trajectory
    return sample.index if sample.rollout_id is None else sample.rollout_id


def sampled_tokens(segments: Sequence[Record]) -> int:
    """Count the tokens that the policy sampled in these samples of an episode. Where they were not recorded, as an
    endpoint gives none, it is the number that the endpoint has counted, which the episode's first sample stands for."""
    if any(record.tokens for record in segments):
        return sum(sum(record.loss_mask or ()) for record in segments)
    counted = (record.episode.counters.completion_tokens for record in segments if record.episode and _is_first(record))
    return next(counted, 0)


def _is_first(record: Record) -> bool:
    return record.index is None or record.index >= 0


S = TypeVar("S", Sample, Record)


def trajectories(samples: Iterable[S]) -> list[list[S]]:
    """Group samples by episode, in order of first appearance. One without a name is an episode of its own."""
    return by_episode(samples, trajectory_of)


def by_episode(samples: Iterable[T], name_of: Callable[[T], Hashable | None]) -> list[list[T]]:
    """Group by episode, as `trajectories` does, anything that `name_of` tells the episode of."""
    episodes: dict[Hashable, list[T]] = {}
    for place, sample in enumerate(samples):
        name = name_of(sample)
        episodes.setdefault(("unnamed", place) if name is None else name, []).append(sample)
    return list(episodes.values())


def is_broken(segments: Sequence[S]) -> bool:
    """Say whether infrastructure, not the policy, ended the episode of these samples or records."""
    return any(map(_is_broken, segments))


def _is_broken(segment: Sample | Record) -> bool:
    if isinstance(segment, Record):
        return segment.broken
    return segment.status == Sample.Status.ABORTED or failure_of(segment) is not None


def flatten(samples: Any) -> list[Sample]:
    """Return the samples of any nesting of lists, in order."""
    if isinstance(samples, list | tuple):
        return [sample for inner in samples for sample in flatten(inner)]
    return [samples]


def columns_of(sample: Sample, reward_key: str | None) -> dict[str, Any]:
    """Return the sample's own fields, by their names in a record."""
    return {
        "index": sample.index,
        "group_index": sample.group_index,
        "trajectory": trajectory_of(sample),
        "task": task_id_of(sample),
        "status": sample.status.value,
        "reward": reward_of(sample, reward_key),
        "remove_sample": sample.remove_sample,
        "tokens": sample.tokens,
        "response_length": sample.response_length,
        "loss_mask": loss_mask_of(sample),
        "log_probs": sample.rollout_log_probs,
        "weight_versions": sample.weight_versions,
        "response": sample.response,
    }


def parts_of(sample: Sample) -> dict[str, Any]:
    """Return the parts as the hooks left them, with all that a hook of the user's own put there, in JSON's types."""
    metadata = sample.metadata or {}
    return {key: as_json(metadata.get(key)) for key in (_EPISODE, _SCORE, _FAILURE, _SPANS)}


def _part(sample: Sample, key: str, kind: type[T]) -> T | None:
    given = (sample.metadata or {}).get(key)
    return None if given is None else convert(given, kind, f"metadata[{key!r}] of sample {sample.index}")


def convert(given: Any, kind: type[T], what: str) -> T:
    """Convert a value, also one that holds numpy's numbers. Raises `UserError` that names what is wrong."""
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError:
        pass  # as it stands; it may hold numpy's numbers
    try:
        return msgspec.convert(as_json(given), kind, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise UserError(f"{what} is no {kind.__name__}: {error}") from error


# `to_samples` turns an `Episode` into what the trainer receives: one SLiME `Sample` for each of its segments.
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
        _fill(args, made, _without_tail(segment), decode, evaluation)
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


def _fill(
    args: Any, sample: Sample, segment: Segment, decode: Callable[[Sequence[int]], str], evaluation: bool
) -> None:
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
    if segment.routed_experts and not evaluation:  # which is held until its set ends, and trained in no step
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
