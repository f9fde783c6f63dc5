"""One rollout of a record: its groups, their episodes, and how old the weights were that sampled them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.rollout.journals import read_rollouts
from slime_swe.rollout.records import Record, trajectories
from slime_swe.rollout.replies import INITIAL_WEIGHTS

Groups = dict[int, list[list[int]]]


@dataclass(frozen=True)
class Recorded:
    """groups: number -> its episodes, each the places of its records, in the order in which groups began. staleness:
    of each group, by how many weight updates the oldest weights that sampled it were behind those that it trains; None
    where the record does not say.
    """

    rollout: int
    records: list[Record]
    groups: Groups
    staleness: dict[int, int | None]

    @property
    def episodes(self) -> Iterator[list[int]]:
        return (places for group in self.groups.values() for places in group)


def read_recorded(journal: Path) -> Iterator[Recorded]:
    """A run's rollouts, one in memory at a time. Raises `UserError` where there are none, or a sample is of none."""
    first: dict[int | None, tuple[int, int | None]] = {}  # attempt -> its first rollout, and its newest weights
    empty = True
    for records in read_rollouts(journal):
        empty = False
        rollout, attempt = records[0].rollout_id, records[0].attempt
        if rollout is None:
            raise UserError(f"{journal}: record {records[0].index} names no rollout: it was not written by a run")
        start, newest = first.setdefault(attempt, (rollout, _newest(records)))
        current = None if newest is None else newest + rollout - start
        groups = _groups(records, journal)
        ages = {
            number: _age([records[p] for places in group for p in places], current) for number, group in groups.items()
        }
        yield Recorded(rollout, records, groups, ages)
    if empty:
        raise UserError(f"{journal} has no episode yet: there is nothing to replay")


def _groups(records: list[Record], journal: Path) -> Groups:
    places = {id(record): place for place, record in enumerate(records)}
    groups: Groups = {}
    for segments in trajectories(records):
        number = segments[0].group_index
        if number is None:
            raise UserError(f"{journal}: record {segments[0].index} names no group: there is no baseline to compute")
        groups.setdefault(number, []).append([places[id(segment)] for segment in segments])
    return dict(sorted(groups.items()))


def _newest(records: Iterable[Record]) -> int | None:
    return max((version for record in records for version in _versions(record) or ()), default=None)


def _age(records: list[Record], current: int | None) -> int | None:
    versions = [_versions(record) for record in records]
    if current is None or None in versions:
        return None
    return max(0, current - min((version for found in versions for version in found or ()), default=current))


def _versions(record: Record) -> list[int] | None:
    """The weights that sampled it, by number: those of a server's start come before the first update's. None where one
    has another name."""
    names = record.weight_versions
    if not all(name == INITIAL_WEIGHTS or name.isdecimal() for name in names):
        return None
    return [-1 if name == INITIAL_WEIGHTS else int(name) for name in names]
