"""`Scheduler`, what it knows of a group, and the two that there are: `DynamicSampling` and `PacedAdmission`."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Outcome(enum.Enum):
    """The outcome of a group, once all of its episodes have ended."""

    INFORMATIVE = "informative"  # its episodes differ, so that there is something to learn
    UNIFORM = "uniform"  # they do not
    BROKEN = "broken"  # infrastructure left too few of them; if it is tried again, it begins anew


@dataclass(frozen=True)
class Batch:
    """The groups of one training step, in the order in which they began. requeued: what is to be sampled anew.
    begun: the versions under which the groups began."""

    groups: Sequence[int]
    begun: Sequence[int]
    requeued: Sequence[int] = ()


class Scheduler(Protocol):
    """Groups have numbers, which increase in the order in which they begin for the first time.

    A version is the number of training steps that the weights have seen. Each group is trained once, dropped once or
    given back; which of them does not depend on how long its episodes take.
    """

    def wanted(self, version: int) -> int:
        """Return how many more groups to begin now, for batches that are trained on this version and later ones."""
        ...

    def begin(self, group: int, version: int) -> None:
        """Note that a group has begun, or begun anew: because it ended broken, or because it was given back.

        The version is that of `wanted`.
        """
        ...

    def end(self, group: int, outcome: Outcome) -> None:
        """Note that a group has come to its end. One that is not informative is dropped."""
        ...

    def take(self, version: int) -> Batch | None:
        """Return the batch that is trained on weights of this version, once it is complete."""
        ...


# `DynamicSampling`: batches of informative groups, all sampled under the weights that they train (DAPO, arXiv
# 2503.14476, section 3.2).
MARGIN = 1.0  # standard deviations of the number of informative groups, among as many as are begun
WINDOW = 4  # batches whose groups tell how many are informative


class NothingInformative(Exception):
    """So many groups in a row were not informative that no batch can be expected."""


@dataclass
class DynamicSampling:
    """A batch is the first `batch_size` informative groups in the order in which groups began.

    So it is a function of what the groups come to, not of which comes first: runs of one seed agree, and slow groups
    are as likely to be trained as quick ones. What began behind the last of them is given back, finished or not, since
    the next weights must sample it anew. How much that is, is bounded: as many groups are begun as have, at the rate of
    informative ones so far, enough of these among them, with a margin, since a second wave would take as long as the
    first; and at most `max_over_sampling` times what is missing, which should be more than one over that rate.
    `patience`: how many batches' worth of groups in a row may be uniform. `lag`: as of `PacedAdmission`.
    """

    batch_size: int
    max_over_sampling: float = 2.0
    patience: int = 50
    lag: int = 0
    _running: set[int] = field(default_factory=set)
    _ended: dict[int, Outcome] = field(default_factory=dict)  # of the groups that began for this batch
    _judged: list[bool] = field(default_factory=list)  # whether a group was informative, the last ones

    @property
    def rate(self) -> float:
        """The share of informative groups among the judged ones, as if one more had been: not 0, and 1 at the start."""
        return (sum(self._judged) + 1) / (len(self._judged) + 1)

    def wanted(self, version: int) -> int:
        missing = self.batch_size - self._informative()
        if missing <= 0:
            return 0
        rate = self.rate
        spread = math.sqrt(missing * (1 - rate))
        enough = min(math.ceil((missing + MARGIN * spread) / rate), math.ceil(missing * self.max_over_sampling))
        return max(0, enough - len(self._running))

    def begin(self, group: int, version: int) -> None:
        self._running.add(group)

    def end(self, group: int, outcome: Outcome) -> None:
        """Note that a group has come to its end. Raises `NothingInformative` if it was one too many."""
        self._running.remove(group)
        self._ended[group] = outcome
        if outcome is not Outcome.BROKEN:
            self._judged = [*self._judged, outcome is Outcome.INFORMATIVE][-WINDOW * self.batch_size :]
        uniform = list(self._ended.values()).count(Outcome.UNIFORM)
        if uniform >= self.patience * self.batch_size and not self._informative():
            raise NothingInformative(f"none of {uniform} groups was informative")

    def take(self, version: int) -> Batch | None:
        if self._informative() < self.batch_size:
            return None
        first = min(self._running, default=math.inf)
        informative = (group for group, outcome in self._ended.items() if outcome is Outcome.INFORMATIVE)
        chosen = sorted(group for group in informative if group < first)[: self.batch_size]
        if len(chosen) < self.batch_size:
            return None
        requeued = sorted(group for group in (*self._running, *self._ended) if group > chosen[-1])
        self._running.clear()
        self._ended.clear()
        return Batch(chosen, [max(0, version - self.lag)] * len(chosen), requeued)

    def _informative(self) -> int:
        return list(self._ended.values()).count(Outcome.INFORMATIVE)


# `PacedAdmission`: groups go on over training steps, and none is trained when it is too old.
@dataclass
class PacedAdmission:
    """No group that began under version v is trained later than on version v + `max_staleness`, and none is discarded
    for being old.

    This is a matter of pace (AReaL, arXiv 2505.24298, section 4.2). Of the groups that are begun and not yet trained,
    `batch_size` are trained in each step, and each has its last step. Groups are begun only as long as all can keep it:
    so at most `(max_staleness + 1) * batch_size` are outstanding, and one batch less while a batch trains, since what
    begins then has one step less. A batch is the oldest finished groups, but a younger one may not take the place of an
    older one whose last step could not be kept then: the batch waits for that.

    lag: by how many versions the weights that sample are behind those that a batch is trained on, once there have been
    so many: 0 if sampling and training take turns, 1 if a batch is sampled while the one before it is trained.
    """

    batch_size: int
    max_staleness: int
    lag: int = 0
    _following: int = 0  # the version that the next batch is trained on, at least
    _begun: dict[int, int] = field(default_factory=dict)  # outstanding group -> the version under which it began
    _finished: set[int] = field(default_factory=set)

    @property
    def outstanding(self) -> int:
        return len(self._begun)

    def wanted(self, version: int) -> int:
        last = self._sampling(version) + self.max_staleness  # on which what begins now can be trained
        steps = last - max(version, self._following) + 1
        return steps * self.batch_size - len(self._begun)

    def begin(self, group: int, version: int) -> None:
        self._begun[group] = self._sampling(version)

    def end(self, group: int, outcome: Outcome) -> None:
        if outcome is Outcome.INFORMATIVE:
            self._finished.add(group)
        else:
            del self._begun[group]

    def _sampling(self, version: int) -> int:
        """Return the version of the weights that sample while a batch is trained on this one."""
        return max(0, version - self.lag)

    def take(self, version: int) -> Batch | None:
        by_age = sorted(self._finished, key=lambda group: (self._begun[group], group))
        chosen = by_age[: self.batch_size]
        left = [begun for group, begun in self._begun.items() if group not in chosen]
        if len(chosen) < self.batch_size or not self._in_time(left, version):
            return None
        self._following = version + 1
        self._finished.difference_update(chosen)
        chosen = sorted(chosen)
        return Batch(chosen, [self._begun.pop(group) for group in chosen])

    def _in_time(self, begun: list[int], version: int) -> bool:
        """Say whether groups of these versions can be trained in the steps after this one, each by its last step."""
        last_steps = sorted(first + self.max_staleness - version for first in begun)
        return all(number < step * self.batch_size for number, step in enumerate(last_steps))


# `Schedule` says what a run does with its episodes while it trains, and when a batch is full.
@dataclass(frozen=True)
class Schedule:
    """A run's schedule. overlaps: it samples while it trains, so that other GPUs must serve than those that train.

    carries: groups that are not finished when a batch is full go on under the next weights; without it they are given
    back, and sampled anew.
    """

    overlaps: bool = False
    carries: bool = False

    @property
    def pauses(self) -> bool:
        """True where episodes that are carried wait while weights are trained."""
        return self.carries and not self.overlaps

    @property
    def in_background(self) -> bool:
        """True where episodes run, and begin, whatever else the run does."""
        return self.carries and self.overlaps


SYNC = "sync"
SCHEDULES: Mapping[str, Schedule] = {
    SYNC: Schedule(),
    "carry": Schedule(carries=True),
    "async": Schedule(overlaps=True),
    "continuous": Schedule(overlaps=True, carries=True),
}
