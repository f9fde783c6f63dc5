"""The outcome of a drill: what SLiME did, what was lost, how `--resume` went on, and each promise with its figure."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.launch.output import table_console
from slime_swe.launch.rehearse.checks import Check, Measured
from slime_swe.launch.rehearse.evidence import STEPS, dump_paths
from slime_swe.launch.rehearse.faults import Drill
from slime_swe.launch.rehearse.rehearsal import figure
from slime_swe.launch.slime.paths import CHECKPOINTS
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES
from slime_swe.rollout.retention import TRACKER, last_saved, saved

GOES_ON, HANGS = "goes on", "hangs"


def processes(seen: Seen) -> Measured:
    """Count processes of the run that outlive its driver."""
    return Measured(len(seen.processes), 0)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one drill.

    ending: `goes on`, `hangs`, or the code that the run ended with. seconds: from the fault to the run's end.
    lost_episodes: how many were played again after they were written. lost_steps: how many were made again.
    resumed_from: what a resumption begins with; empty where there was none. processes: titles of those that outlived
    the run.
    """

    part: str
    moment: str
    recipe: str
    when: str
    ending: str
    seconds: float
    lost_episodes: int
    lost_steps: int
    resumed_from: str
    processes: tuple[str, ...]
    promises: tuple[Check, ...]

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.promises if not check.ok]

    @property
    def ok(self) -> bool:
        return not self.broken


def judge(seen: Seen, recipe: str, when: str) -> Outcome:
    went_on = seen.resumed is None
    return Outcome(
        part=seen.drill.part,
        moment=seen.drill.moment,
        recipe=recipe,
        when=when,
        ending=GOES_ON if went_on else HANGS if seen.code is None else f"ends with code {seen.code}",
        seconds=round(seen.seconds, 1),
        lost_episodes=len(replayed(seen)),
        lost_steps=len(again(seen)),
        resumed_from="" if went_on else resumes_from(seen.at_end),
        processes=seen.processes,
        promises=tuple(compare(seen)),
    )


# The docs' promises about a run that fails, each as a figure and its limit.
#
# Adding one is a function here, and its line in `PROMISES`.
def resumed(seen: Seen) -> Measured:
    """Return the exit code of `--resume`, or of the run itself where it went on."""
    code = seen.code if seen.resumed is None else seen.resumed
    return Measured(abs(code or 0), 0)


def lost_records(seen: Seen) -> Measured:
    """Count records of rollouts that a checkpoint had seen, which are gone or are others in the end."""
    kept = {episode.record for episode in seen.finally_.episodes}
    left = (seen.at_fault, seen.at_end)
    settled = {one.record for found in left for one in found.episodes if one.rollout <= found.checkpoint}
    return Measured(len(settled - kept), 0)


def repeated_steps(seen: Seen) -> Measured:
    """Count training steps that were made, and made again by the resumed run."""
    return Measured(len(again(seen)), seen.save_interval)


def again(seen: Seen) -> list[int]:
    """List the rollouts whose training step was made twice."""
    return [number for number, when in seen.at_end.steps.items() if seen.finally_.steps.get(number) != when]


def repeated_episodes(seen: Seen) -> Measured:
    """Count episodes in the journal that were played again; allowed are a rollout's for each step that may be lost."""
    return Measured(len(replayed(seen)), seen.save_interval * seen.groups * seen.episodes)


def replayed(seen: Seen) -> set[int]:
    """Return the trajectories of the journal whose records are others in the end."""
    kept = {episode.record for episode in seen.finally_.episodes}
    return {episode.trajectory for episode in seen.at_end.episodes if episode.record not in kept}


def twice(seen: Seen) -> Measured:
    """Count records of the journal beyond an episode's first rollout, or that stand there twice."""
    found = seen.finally_.episodes
    rollouts = {(episode.trajectory, episode.rollout) for episode in found}
    trajectories = {episode.trajectory for episode in found}
    copies = len(found) - len({(episode.trajectory, episode.record) for episode in found})
    return Measured(len(rollouts) - len(trajectories) + copies, 0)


def missing_episodes(seen: Seen) -> Measured:
    """Count episodes that the journal lacks in the end."""
    wanted = seen.rollouts * seen.groups * seen.episodes
    return Measured(max(0, wanted - len({episode.trajectory for episode in seen.finally_.episodes})), 0)


def skipped_groups(seen: Seen) -> Measured:
    """Count groups of the task order that were passed over."""
    groups = {episode.group for episode in seen.finally_.episodes}
    return Measured(len(set(range(max(groups, default=-1) + 1)) - groups), 0)


def missing_steps(seen: Seen) -> Measured:
    """Count rollouts that were not trained on in the end."""
    return Measured(len(set(range(seen.rollouts)) - seen.finally_.steps.keys()), 0)


def trained_failures(seen: Seen) -> Measured:
    """Count episodes that infrastructure broke and that are in the loss."""
    return Measured(sum(episode.broken and not episode.removed for episode in seen.finally_.episodes), 0)


PROMISES: dict[str, tuple[Callable[[Seen], Measured], str]] = {  # name -> function, and where it is promised
    "resumed": (resumed, "docs/quickstart.md: --resume goes on, however the run was stopped"),
    "lost_records": (lost_records, "docs/quickstart.md: no sample is lost"),
    "repeated_steps": (repeated_steps, "docs/clusters.md: the work since the last checkpoint is lost, and no more"),
    "repeated_episodes": (repeated_episodes, "docs/clusters.md: an interrupted rollout is played again, and no other"),
    "twice": (twice, "docs/quickstart.md: no sample is counted twice"),
    "missing_episodes": (missing_episodes, "docs/quickstart.md: no sample is lost"),
    "skipped_groups": (skipped_groups, "docs/clusters.md: no task is skipped"),
    "missing_steps": (missing_steps, "docs/quickstart.md: --resume goes on to the end"),
    "trained_failures": (trained_failures, "docs/plugins.md: what infrastructure broke is in no loss"),
    "processes": (processes, "docs/clusters.md: when a run ends, every process of it does"),
}


def compare(seen: Seen) -> list[Check]:
    """Check every promise against what was seen."""
    found = [(name, measure(seen), where) for name, (measure, where) in PROMISES.items()]
    return [Check(name, one.ok, one.value, one.limit, where) for name, one, where in found]


def resumes_from(left: Left) -> str:
    """Say, for people, what a resumption of the run begins with."""
    return "the model's weights" if left.checkpoint < 0 else f"the checkpoint of rollout {left.checkpoint}"


NONE = -1  # in the place of a rollout: there is none


def record(outcome: Outcome) -> dict[str, Any]:
    """Return the record of one drill, as `benchmarks/baselines/faults` keeps it."""
    return {"ok": outcome.ok, **dataclasses.asdict(outcome)}


# A drill sees the run's folder when the fault came, when the run had ended, and after it was resumed.
@dataclass(frozen=True)
class Episode:
    """One record of the journal. removed: whether it is out of the loss. record: a digest of it."""

    rollout: int
    group: int
    trajectory: int
    broken: bool
    removed: bool
    record: str


@dataclass(frozen=True)
class Left:
    """The contents of a run's folder. steps: rollout -> when its training step was done, in nanoseconds.

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
    """A drill as it was seen.

    rollouts, groups, episodes: how many the run, a rollout and a group have. save_interval: in rollouts. code: that of
    the run that had the fault; None where it was stopped, as it no longer went on. seconds: from the fault to its end,
    or without a new file when it was stopped. processes: titles of those that outlived the run. resumed: the code of
    `--resume`; None where there was nothing to resume.
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
    """Find the newest usable checkpoint by what lies there, not by what a resumption makes of it; else `NONE`."""
    if not (checkpoints / TRACKER).is_file():
        return NONE
    newest = last_saved(checkpoints, unreadable=max(saved(checkpoints), default=NONE))
    return max((n for n in saved(checkpoints) if n <= newest and state_path(checkpoints, n).is_file()), default=NONE)


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"ok": all(one.ok for one in outcomes), "drills": [record(one) for one in outcomes]}


def show(outcomes: Sequence[Outcome]) -> None:
    console = table_console()
    table = Table("fails", "during", "SLiME", "seconds", "episodes lost", "steps lost", "resumed from", "promises")
    for one in outcomes:
        kept = f"{len(one.promises) - len(one.broken)} of {len(one.promises)}"
        lost = (str(one.lost_episodes), str(one.lost_steps))
        table.add_row(one.part, one.moment, one.ending, f"{one.seconds:.0f}", *lost, one.resumed_from or "–", kept)
    console.print(table)
    for one in outcomes:
        for check in one.broken:
            values = f"{figure(check.value)}, at most {figure(check.limit)}"
            line = f"{one.part}.{one.moment}: {check.name} is {values}: {check.look_at}"
            console.print(line, markup=False, highlight=False)
