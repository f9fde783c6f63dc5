"""A run's journals: files with one record a line, which is appended, and read with the others or alone by its place.

`episodes.jsonl` and `evaluations.jsonl` have the samples, `tools/` the lists of tools that their prompts offered.
`trained.jsonl` says what a step made of the samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.journal import LineIndex, Place, as_json, encoded, printable
from slime_swe.redaction import Secrets, redacted, secrets_of
from slime_swe.rollout.records import TEXTS, TOOLS, TURNS, Record, Summary, columns_of, convert, parts_of, turns_of
from slime_swe.sample import Sample


def append_records(
    path: Path, samples: Iterable[Sample], reward_key: str | None = None, **where: str | int | None
) -> None:
    """Append a line for each sample, all of them or none, durably. `where`: `rollout_id`, `dataset` and `attempt`.

    Secrets of this process's environment are replaced in the texts. Raises `FileError` where the disk is full or the
    folder is not writable, and `UserError` where a record could not be read again, as one with a NaN; the file is then
    as it was.
    """
    secrets = secrets_of(os.environ)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for sample in samples:
            values = _values(sample, reward_key, secrets)
            tools = keep_tools(path.parent, redacted(as_json((sample.metadata or {}).get(TOOLS)), secrets))
            lines.append(encoded({**where, **values, TOOLS: tools}))
        try:
            _index(path).append(lines)
        except UserError as error:
            raise UserError(
                f"{error}. No record was written; where it has null, a hook gave NaN or infinity, which JSON has not"
            ) from error


# Turns in a line, which has the text of most of them in its response.
_SHORT = 24  # characters: a text of fewer is kept as it is


def packed(turns: Iterable[Mapping[str, Any]], response: str) -> list[dict[str, Any]]:
    """Shorten turns, as JSON has them, for the line of a journal that has `response` too: a text that is in there is
    replaced by the place of its first character and that behind its last one."""
    at, short = 0, []
    for turn in turns:
        turn = dict(turn)
        for key in ("reasoning", "text"):  # in the order in which the policy writes them
            text = turn.get(key) or ""
            found = response.find(text, at) if len(text) >= _SHORT else -1
            if found >= 0:
                at = found + len(text)
                turn[key] = [found, at]
        short.append(turn)
    return short


def unpacked(turns: Any, response: Any) -> Any:
    """Undo `packed`. Anything else than its turns is left as it is, for whoever checks a record."""
    if not (isinstance(turns, list) and isinstance(response, str)):
        return turns
    return [
        {key: response[slice(*value)] if key in ("reasoning", "text") and _is_place(value) else value
         for key, value in turn.items()}
        if isinstance(turn, dict) else turn
        for turn in turns
    ]  # fmt: skip


def _is_place(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(at, int) for at in value)


# Lists of tools that prompts have offered: one file for each of a run's lists, as thousands of episodes share one.
FOLDER = "tools"  # in a run's folder
_DIGITS = 16


def keep_tools(run: Path, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Keep a list of function schemas, unless the run has it already, and return its name; None for none."""
    if not tools:
        return None
    content = orjson.dumps(tools)
    name = sha256(content).hexdigest()[:_DIGITS]
    file = run / FOLDER / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        replace_file(file, content)
    return name


def read_tools(run: Path, name: str | None) -> list[dict[str, Any]]:
    """Read the tools that a run keeps under a name; none for None. Raises `UserError` where the name is unknown."""
    if name is None:
        return []
    file = run / FOLDER / f"{name}.json"
    if not file.exists():
        raise UserError(f"{file} is missing, in which the run keeps the tools of some episodes: restore it")
    tools: list[dict[str, Any]] = orjson.loads(file.read_bytes())
    return tools


def _values(sample: Sample, reward_key: str | None, secrets: Secrets) -> dict[str, Any]:
    values = {**columns_of(sample, reward_key), **parts_of(sample), TURNS: msgspec.to_builtins(turns_of(sample))}
    values |= {key: printable(redacted(values[key], secrets)) for key in TEXTS}  # as they will be, before places count
    if values[TURNS] is not None:
        values[TURNS] = packed(values[TURNS], values["response"])
    return values


def read_records(path: Path) -> Iterator[Record]:
    """Yield a journal's records in order, none where there is no file. A line that is still being written is left out.

    Raises `UserError` where a line is no record.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                yield _record(line, f"{path}, line {number}")


def read_rollouts(path: Path) -> Iterator[list[Record]]:
    """Yield a journal's records rollout by rollout, without turns; one rollout is in memory at a time.

    Of a rollout that several attempts have played, the last one's count. Raises `UserError` where a line is no record,
    or where the records of a rollout do not stand together.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        last: dict[int | None, int] = {}
        for moment, _, _ in _placed(lines, path):
            last[moment.rollout_id] = max(last.get(moment.rollout_id, 0), moment.attempt or 0)
        lines.seek(0)
        read: set[int | None] = set()
        for moment, found in groupby(_placed(lines, path), key=itemgetter(0)):
            if last.get(moment.rollout_id, 0) != (moment.attempt or 0):
                continue
            if moment.rollout_id in read:
                raise UserError(f"{path}: the records of rollout {moment.rollout_id} do not stand together")
            read.add(moment.rollout_id)
            yield [convert(_loads(line, where) | {TURNS: None}, Record, where) for _, line, where in found]


class _Moment(msgspec.Struct, frozen=True):
    """The fields of a record that say whether it counts."""

    rollout_id: int | None = None
    attempt: int | None = None


def _placed(lines: Iterable[bytes], path: Path) -> Iterator[tuple[_Moment, bytes, str]]:
    """Yield whole lines, each with where it stands, for errors."""
    decode = msgspec.json.Decoder(_Moment).decode
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            where = f"{path}, line {number}"
            try:
                yield decode(line), line, where
            except msgspec.DecodeError:
                convert(_loads(line, where), Record, where)  # which says what is wrong
                raise


def read_summaries(path: Path) -> list[tuple[Place, Summary]]:
    """Read the place and the summary of each record of a journal, in order, mostly from the journal's index."""
    return _index(path).read()


def read_record(path: Path, place: Place, secrets: Secrets = ()) -> Record:
    """Read one record without the others. secrets: what to replace in its texts."""
    return _record(_index(path).line(place), f"{path}, byte {place.start}", secrets)


def _index(path: Path) -> LineIndex[Summary]:
    return LineIndex(path, lambda line, where: Summary.of(_record(line, where)), Summary)


def _record(line: bytes, where: str, secrets: Secrets = ()) -> Record:
    values = _loads(line, where)
    if isinstance(values, dict) and values.get(TURNS):
        values[TURNS] = unpacked(values[TURNS], values.get("response", ""))
    if secrets and isinstance(values, dict):
        values |= {key: redacted(values.get(key), secrets) for key in TEXTS}
    index = values.get("index") if isinstance(values, dict) else None
    return convert(values, Record, where if index is None else f"{where} (sample {index})")


def _loads(line: bytes, where: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{where} is no JSON ({error}): restore the file, or remove that line") from error


# `trained.jsonl`: what a step made of the run's samples, in a second file beside `episodes.jsonl`, written after it.
#
# A line is about the sample that the journal of episodes has under the same rollout, index and attempt; of two lines
# about one sample the later counts. A sample without a line was in no step: its group was dropped, it was left out of
# the loss, or infrastructure broke it.
TRAINED = "trained.jsonl"


class _Name(msgspec.Struct, frozen=True, array_like=True):
    """The name of the sample that a line is about, which the file's index has of it."""

    rollout_id: int
    index: int | None
    attempt: int | None

    @classmethod
    def of(cls, trained: TrainedSample) -> _Name:
        return cls(trained.rollout_id, trained.index, trained.attempt)


class TrainedSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample as a step trained it. advantage: of every token that the policy sampled, or one for each where they
    differ. log_probs: the trainer's, in nats, of those tokens, before the rollout's first step; None where the engine
    did not compute them. step: which of the rollout's optimizer steps had the sample, from 0; None where that is not
    known.
    """

    rollout_id: int
    index: int | None
    advantage: float | list[float]
    log_probs: list[float] | None = None
    step: int | None = None
    attempt: int | None = None

    @property
    def shown_advantage(self) -> str:
        """The advantage as text for people: of several, the least and the greatest."""
        values = self.advantage if isinstance(self.advantage, list) else [self.advantage]
        return " to ".join(f"{value:.4g}" for value in sorted({min(values), max(values)})) if values else "none"

    def require_fit(self, record: Record, where: str) -> None:
        """Raise `UserError` where there is not one value for each token that the policy sampled."""
        for name, values in (("log_probs", self.log_probs), ("advantage", self.advantage)):
            if isinstance(values, list) and len(values) != record.sampled:
                raise UserError(
                    f"{where}: sample {self.index} of rollout {self.rollout_id} has {len(values)} values of {name} and "
                    f"{record.sampled} sampled tokens: restore the file, or remove it"
                )


def append_trained(path: Path, samples: Iterable[TrainedSample]) -> None:
    """Append a line for each sample, all of them or none, durably. Raises `FileError` where the file can't be written;
    it is then as it was."""
    with writing(path):
        _trained_index(path).append([encoded(msgspec.to_builtins(sample)) for sample in samples])


class TrainedSamples:
    """The trained samples of a run, found by the records of its episodes. One line is read at a time.

    Raises `UserError` where the file has a line that is none of its.
    """

    def __init__(self, path: Path) -> None:
        self._lines = _trained_index(path)
        self._places = {name: place for place, name in self._lines.read()}

    def of(self, record: Record) -> TrainedSample | None:
        """Find a record's sample; None where no step had it. Raises `UserError` where the file does not fit it."""
        if record.rollout_id is None or record.dataset is not None:
            return None
        place = self._places.get(_Name(record.rollout_id, record.index, record.attempt))
        if place is None:
            return None
        where = f"{self._lines.journal}, byte {place.start}"
        found = _read_trained(self._lines.line(place), where)
        found.require_fit(record, where)
        return found


def read_appended(path: Path, start: int) -> tuple[list[TrainedSample], int]:
    """Read the whole lines from byte `start` on; returns them, none without a file, and the byte after the last one.

    Raises `UserError` where a line is none of the file's.
    """
    if not path.exists():
        return [], start
    with path.open("rb") as lines:
        lines.seek(start)
        whole = [line for line in lines if line.endswith(b"\n")]
    return [_read_trained(line, f"{path}, after byte {start}") for line in whole], start + sum(map(len, whole))


def _trained_index(path: Path) -> LineIndex[_Name]:
    return LineIndex(path, lambda line, where: _Name.of(_read_trained(line, where)), _Name)


def _read_trained(line: bytes, where: str) -> TrainedSample:
    try:
        return msgspec.json.decode(line, type=TrainedSample)
    except msgspec.DecodeError as error:
        raise UserError(f"{where} is no {TrainedSample.__name__} ({error}): restore the file, or remove it") from error
