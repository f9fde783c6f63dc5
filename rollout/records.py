"""The record of an episode: its fields in a sample's metadata and in a line of a run's journals.

The rollout hook writes what the agent did, the reward hook writes the score, and each writes where infrastructure
failed. Metrics, reports and viewers read the record through this module; no other module spells these keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from slime_swe.data_sources.slime_plugin import task_id_of
from slime_swe.errors import UserError
from slime_swe.files import append, writing
from slime_swe.rollout.episode import Counters, Episode, Timings
from slime_swe.rollout.version_spans import VersionSpan
from slime_swe.sample import Sample

EPISODES, EVALUATIONS = "episodes.jsonl", "evaluations.jsonl"  # the journals of a run
# In a sample's metadata, and in a journal's line.
_EPISODE, _SCORE, _FAILURE, _SPANS = "episode", "score", "infrastructure", "version_spans"

T = TypeVar("T")


class EpisodeRecord(msgspec.Struct, frozen=True):
    """What the agent did. A user's own generate function must give the patch; the other fields are optional."""

    patch: str
    stop_reason: str = ""
    detail: str = ""  # the error behind an infrastructure failure
    turns: int = 0
    counters: Counters = Counters()
    timings: Timings = Timings()
    evaluation: bool = False
    masked: bool = False  # out of the loss for its stop reason (`rollout.mask_truncated`), though it has a reward


class Score(msgspec.Struct, frozen=True):
    """What a patch is worth, what that is made of, and the evidence behind it.

    `solved` is the binary outcome that groups are filtered on, whatever shape `value` has; `first_edit_solved` is that
    of the first edit alone, in evaluations.
    """

    solved: bool
    value: float = 0.0
    components: dict[str, float] = {}
    evidence: dict[str, Any] = {}
    first_edit_solved: bool | None = None


class Failure(msgspec.Struct, frozen=True):
    """What failed other than the policy: a stop reason or another short name, and the error's text."""

    where: str = ""
    detail: str = ""


class Record(msgspec.Struct, frozen=True):
    """One sample of an episode: its whole record. Journals hold one a line, under these names.

    `trajectory` names the episode: the siblings of one fan-out share it. `loss_mask` and `log_probs` have length
    `response_length`, and `version_spans` cover as many tokens. `reward` is None where none was given.
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
    episode: EpisodeRecord | None = None
    score: Score | None = None
    infrastructure: Failure | None = None
    rollout_id: int | None = None  # in journals
    dataset: str | None = None  # in the journal of evaluations
    attempt: int | None = None  # of the run, in journals: which of its starts wrote this

    @property
    def broken(self) -> bool:
        """Whether infrastructure, not the policy, ended the episode."""
        return self.status == Sample.Status.ABORTED.value or self.infrastructure is not None

    @property
    def solved(self) -> bool:
        """The binary outcome. If the reward function records none, whether the reward is positive."""
        if self.broken:
            return False
        return self.score.solved if self.score else (self.reward or 0.0) > 0


def episode_of(sample: Sample) -> EpisodeRecord | None:
    """What the rollout hook recorded; None where it recorded nothing. Raises `UserError` where it is malformed."""
    return _part(sample, _EPISODE, EpisodeRecord)


def failure_of(sample: Sample) -> Failure | None:
    return _part(sample, _FAILURE, Failure)


def version_spans_of(sample: Sample) -> list[VersionSpan] | None:
    """Which weights sampled which tokens of the response; None where nobody recorded it."""
    return _part(sample, _SPANS, list[VersionSpan])


def write_version_spans(sample: Sample, spans: Iterable[VersionSpan]) -> None:
    sample.metadata = {**(sample.metadata or {}), _SPANS: [[version, count] for version, count in spans]}


def write_episode(sample: Sample, episode: Episode, evaluation: bool, *, masked: bool = False) -> None:
    """Record a new episode in the sample's metadata, and remove what an earlier episode left there."""
    kept = {key: value for key, value in (sample.metadata or {}).items() if key not in (_SCORE, _FAILURE, _SPANS)}
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
    if score.first_edit_solved is None:
        del record["first_edit_solved"]
    for segment in segments:
        segment.metadata = {**(segment.metadata or {}), _SCORE: record}
        segment.reward = score.value


def write_failure(sample: Sample, where: str, detail: str) -> None:
    """Take the sample out of reward, baseline and loss, and record why."""
    sample.status = Sample.Status.ABORTED
    sample.reward = 0.0
    sample.remove_sample = True
    sample.metadata = {**(sample.metadata or {}), _FAILURE: {"where": where, "detail": detail}}


def reward_of(sample: Sample, reward_key: str | None = None) -> float | None:
    """The reward as a number; `reward_key` (SLiME's) chooses it where the reward is a mapping."""
    given: Any = sample.reward.get(reward_key) if reward_key and isinstance(sample.reward, dict) else sample.reward
    return number(given)


def number(given: Any) -> float | None:
    """A number, also numpy's or torch's; None for anything else, such as an array of several."""
    try:
        return float(given) if hasattr(given, "__float__") else None
    except (TypeError, ValueError, RuntimeError):
        return None


def record_of(sample: Sample, reward_key: str | None = None) -> Record:
    """The sample's record. Raises `UserError` where a hook of the user's own left a malformed one."""
    return Record(
        **_columns(sample, reward_key),
        episode=episode_of(sample),
        score=_part(sample, _SCORE, Score),
        infrastructure=failure_of(sample),
        version_spans=version_spans_of(sample),
    )


def append_records(
    path: Path, samples: Iterable[Sample], reward_key: str | None = None, **where: str | int | None
) -> None:
    """Append a line for each sample, all of them or none, durably. `where`: `rollout_id`, `dataset` and `attempt`.

    Raises `FileError` where the disk is full or the folder is not writable; the file is then as it was.
    """
    lines = b"".join(_line({**where, **_columns(sample, reward_key), **_parts(sample)}) for sample in samples)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, lines)


def read_records(path: Path) -> Iterator[Record]:
    """A journal's records, in order; none where there is no file. A line that is still being written is left out.

    Raises `UserError` where a line is no record.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                yield _convert(_loads(line, f"{path}, line {number}"), Record, f"{path}, line {number}")


def _loads(line: bytes, where: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{where} is no JSON ({error}): restore the file, or remove that line") from error


def trajectory_of(sample: Sample | Record) -> int | None:
    """The id of the episode that a sample belongs to. Samples of one episode share it."""
    if isinstance(sample, Record):
        return sample.trajectory
    return sample.index if sample.rollout_id is None else sample.rollout_id


S = TypeVar("S", Sample, Record)


def trajectories(samples: Iterable[S]) -> list[list[S]]:
    """Samples by episode, in order of first appearance. One without a name is an episode of its own."""
    by_episode: dict[Any, list[S]] = {}
    for place, sample in enumerate(samples):
        name = trajectory_of(sample)
        by_episode.setdefault(("unnamed", place) if name is None else name, []).append(sample)
    return list(by_episode.values())


def is_broken(segments: Sequence[Sample]) -> bool:
    """Whether infrastructure, not the policy, ended the episode."""
    return any(segment.status == Sample.Status.ABORTED or failure_of(segment) is not None for segment in segments)


def flatten(samples: Any) -> list[Sample]:
    """The samples of any nesting of lists, in order."""
    if isinstance(samples, list | tuple):
        return [sample for inner in samples for sample in flatten(inner)]
    return [samples]


def _columns(sample: Sample, reward_key: str | None) -> dict[str, Any]:
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
        "loss_mask": sample.loss_mask,
        "log_probs": sample.rollout_log_probs,
        "weight_versions": sample.weight_versions,
        "response": sample.response,
    }


def _parts(sample: Sample) -> dict[str, Any]:
    """As the hooks left them, with whatever else a hook of the user's own put there."""
    metadata = sample.metadata or {}
    return {key: metadata.get(key) for key in (_EPISODE, _SCORE, _FAILURE, _SPANS)}


def _part(sample: Sample, key: str, kind: type[T]) -> T | None:
    given = (sample.metadata or {}).get(key)
    return None if given is None else _convert(given, kind, f"metadata[{key!r}] of sample {sample.index}")


def _convert(given: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError:
        pass  # as it stands; it may hold numpy's numbers
    try:
        return msgspec.convert(orjson.loads(_line(given)), kind, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise UserError(f"{what} is no {kind.__name__}: {error}") from error


_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _line(values: Any) -> bytes:
    try:
        return orjson.dumps(values, option=_OPTIONS, default=_plain)
    except TypeError:
        return orjson.dumps(_printable(values), option=_OPTIONS, default=_plain)


def _printable(value: Any) -> Any:
    """With lone surrogates, which JSON can't hold, escaped: a file whose name is no UTF-8 brings them in."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a trajectory holds {type(value).__name__}, which is no JSON type")
