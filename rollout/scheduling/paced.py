"""`PacedAdmission`: groups go on over training steps, and none is trained when it is too old."""

from __future__ import annotations

from dataclasses import dataclass, field

from slime_swe.rollout.scheduling.base import Batch, Outcome


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
        """The version of the weights that sample while a batch is trained on this one."""
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
        """Whether groups of these versions can be trained in the steps after this version, each by its last one."""
        last_steps = sorted(first + self.max_staleness - version for first in begun)
        return all(number < step * self.batch_size for number, step in enumerate(last_steps))
