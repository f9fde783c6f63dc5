"""What a drill has seen: the run's folder when the fault came, when the run had ended, and after it was resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.launch.rehearse.dumps import STEPS, dump_paths
from slime_swe.launch.rehearse.faults import Drill
from slime_swe.launch.slime.paths import CHECKPOINTS
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES
from slime_swe.rollout.retention import TRACKER, last_saved, saved

NONE = -1  # in the place of a rollout: there is none


@dataclass(frozen=True)
class Episode:
    """One record of the journal. removed: from the loss. record: a digest of it."""

    rollout: int
    group: int
    trajectory: int
    broken: bool
    removed: bool
    record: str


@dataclass(frozen=True)
class Left:
    """What a run's folder holds. steps: rollout -> when its training step was done, in nanoseconds.

    checkpoint: the newest from which a run can go on, by the number of its rollout.
    """

    episodes: tuple[Episode, ...] = ()
    steps: Mapping[int, int] = field(default_factory=dict)
    checkpoint: int = NONE

    @classmethod
    def of(cls, run: Path) -> Left:
        steps = {number: path.stat().st_mtime_ns for number, path in dump_paths(run, STEPS).items()}
        return cls(tuple(_episodes(run)), steps, _checkpoint(run / CHECKPOINTS))


@dataclass(frozen=True)
class Seen:
    """rollouts, groups, episodes: of the run, of a rollout, and of a group. save_interval: rollouts.

    code: of the run that had the fault, None where it was stopped since it no longer went on. seconds: from the fault
    to its end, or for which nothing had come when it was stopped. processes: of the run, by title, that outlived it.
    resumed: the code of `--resume`, None where there was nothing to resume.
    """

    drill: Drill
    rollouts: int
    groups: int
    episodes: int
    save_interval: int
    code: int | None
    seconds: float
    processes: tuple[str, ...]
    at_fault: Left
    at_end: Left
    resumed: int | None
    finally_: Left


def _episodes(run: Path) -> Iterator[Episode]:
    for record in read_records(run / EPISODES):
        digest = hashlib.blake2b(repr(record).encode(), digest_size=8).hexdigest()
        assert record.rollout_id is not None and record.group_index is not None
        assert record.trajectory is not None
        numbers = record.rollout_id, record.group_index, record.trajectory
        yield Episode(*numbers, broken=record.broken, removed=record.remove_sample, record=digest)


def _checkpoint(checkpoints: Path) -> int:
    """By what lies there, not by what a resumption makes of it."""
    if not (checkpoints / TRACKER).is_file():
        return NONE
    newest = last_saved(checkpoints, unreadable=max(saved(checkpoints), default=NONE))
    return max((n for n in saved(checkpoints) if n <= newest and state_path(checkpoints, n).is_file()), default=NONE)
