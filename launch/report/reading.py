"""A journal's records, moment by moment. What can't be read is left out and said, so that a damaged run still opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import orjson

from slime_swe.attempts import of_last_attempt
from slime_swe.errors import UserError
from slime_swe.redaction import Secrets
from slime_swe.rollout.journals import read_record
from slime_swe.rollout.line_index import Place
from slime_swe.rollout.records import Record
from slime_swe.rollout.trained import TrainedSample, TrainedSamples

_SAID = 3  # damaged lines of one file that are named each


class _Moment(msgspec.Struct):
    """The fields of a record by which those of one moment are found."""

    rollout_id: int | None = None
    dataset: str | None = None
    attempt: int | None = None


def read_moments(journal: Path, secrets: Secrets, notes: list[str]) -> Iterator[list[Record]]:
    """The records of each training rollout, or of each evaluation, in the order of the journal.

    Where a run was killed and has played a moment again, its last attempt counts. notes: is given a sentence for what
    is left out.
    """
    moments: dict[Any, list[Place]] = {}
    skipped = _Skipped(journal, notes)
    for place, moment in of_last_attempt(_places(journal, skipped), _moment, lambda found: found[1].attempt):
        moments.setdefault(_moment((place, moment)), []).append(place)
    for places in moments.values():
        yield [*_records(journal, places, secrets, skipped)]
    skipped.close()


def _moment(found: tuple[Place, _Moment]) -> tuple[str | None, int | None]:
    return found[1].dataset, found[1].rollout_id


class TrainedOrSkipped:
    """What the steps made of a run's samples. notes: is given a sentence for what is left out."""

    def __init__(self, path: Path, notes: list[str]) -> None:
        self._skipped = _Skipped(path, notes)
        self._samples: TrainedSamples | None = None
        try:
            self._samples = TrainedSamples(path)
        except UserError as error:
            notes.append(f"advantages and the trainer's log-probabilities are left out: {error}")

    def of(self, record: Record) -> TrainedSample | None:
        try:
            return self._samples.of(record) if self._samples else None
        except UserError as error:
            self._skipped.add(f"the line of sample {record.index}, rollout {record.rollout_id},", str(error))
            return None

    def close(self) -> None:
        self._skipped.close()


def read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The JSON objects of a file of figures, one a line; none where there is no such file."""
    skipped, found = _Skipped(path, notes), []
    for number, line in enumerate(path.open("rb") if path.is_file() else (), 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            skipped.add(f"line {number}" if line.endswith(b"\n") else "the last line, half written", str(error))
            continue
        if isinstance(value, dict):
            found.append(value)
    skipped.close()
    return found


class _Skipped:
    """The lines of a file that are left out."""

    def __init__(self, path: Path, notes: list[str]) -> None:
        self._path, self._notes, self._more = path, notes, -_SAID

    def add(self, line: str, why: str) -> None:
        self._more += 1
        if self._more <= 0:
            self._notes.append(f"{self._path.name}: {line} was skipped: {why}")

    def close(self) -> None:
        if self._more > 0:
            self._notes.append(f"{self._path.name}: {self._more} more lines were skipped")


def _places(journal: Path, skipped: _Skipped) -> Iterator[tuple[Place, _Moment]]:
    decoder = msgspec.json.Decoder(_Moment)
    start = 0
    with journal.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = Place(start, len(line), crc32(line))
            start += len(line)
            if not line.endswith(b"\n"):
                skipped.add("the last line, half written", f"{len(line):,} bytes without an end")
                continue
            try:
                yield place, decoder.decode(line)
            except msgspec.DecodeError as error:
                skipped.add(f"line {number}", str(error))


def _records(journal: Path, places: list[Place], secrets: Secrets, skipped: _Skipped) -> Iterator[Record]:
    for place in places:
        try:
            yield read_record(journal, place, secrets)
        except UserError as error:
            skipped.add(f"the record at byte {place.start}", str(error))
