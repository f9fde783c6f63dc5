"""`trained.jsonl`: what a step made of the run's samples, in a second file beside `episodes.jsonl`, written after it.

A line is about the sample that the journal of episodes has under the same rollout, index and attempt; of two lines
about one sample the later counts. A sample without a line was in no step: its group was dropped, it was left out of the
loss, or infrastructure broke it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.rollout.json_lines import LineIndex, encoded
from slime_swe.rollout.records import Record

TRAINED = "trained.jsonl"


class _Name(msgspec.Struct, frozen=True, array_like=True):
    """Which sample a line is about; this is what the file's index has of it."""

    rollout_id: int
    index: int | None
    attempt: int | None

    @classmethod
    def of(cls, trained: TrainedSample) -> _Name:
        return cls(trained.rollout_id, trained.index, trained.attempt)


class TrainedSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """advantage: of every token that the policy sampled, or one for each where they differ. log_probs: the trainer's,
    in nats, of those tokens, before the rollout's first step; None where the engine did not compute them. step: which
    of the rollout's optimizer steps had the sample, from 0; None where that is not known.
    """

    rollout_id: int
    index: int | None
    advantage: float | list[float]
    log_probs: list[float] | None = None
    step: int | None = None
    attempt: int | None = None

    @property
    def shown_advantage(self) -> str:
        """For people: of several, the least and the greatest."""
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
        _index(path).append([encoded(msgspec.to_builtins(sample)) for sample in samples])


class TrainedSamples:
    """Those of a run, by the records of its episodes. One line is read at a time.

    Raises `UserError` where the file has a line that is none of its.
    """

    def __init__(self, path: Path) -> None:
        self._lines = _index(path)
        self._places = {name: place for place, name in self._lines.read()}

    def of(self, record: Record) -> TrainedSample | None:
        """None where no step had the sample. Raises `UserError` where the file does not fit the record."""
        if record.rollout_id is None or record.dataset is not None:
            return None
        place = self._places.get(_Name(record.rollout_id, record.index, record.attempt))
        if place is None:
            return None
        where = f"{self._lines.journal}, byte {place.start}"
        found = _read(self._lines.line(place), where)
        found.require_fit(record, where)
        return found


def read_appended(path: Path, start: int) -> tuple[list[TrainedSample], int]:
    """The whole lines from byte `start` on, and the byte after the last of them; none where there is no file.

    Raises `UserError` where a line is none of the file's.
    """
    if not path.exists():
        return [], start
    with path.open("rb") as lines:
        lines.seek(start)
        whole = [line for line in lines if line.endswith(b"\n")]
    return [_read(line, f"{path}, after byte {start}") for line in whole], start + sum(map(len, whole))


def _index(path: Path) -> LineIndex[_Name]:
    return LineIndex(path, lambda line, where: _Name.of(_read(line, where)), _Name)


def _read(line: bytes, where: str) -> TrainedSample:
    try:
        return msgspec.json.decode(line, type=TrainedSample)
    except msgspec.DecodeError as error:
        raise UserError(f"{where} is no {TrainedSample.__name__} ({error}): restore the file, or remove it") from error
