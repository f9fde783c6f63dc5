"""`DynamicSampling`: batches of informative groups, all sampled under the weights that they train (DAPO,
arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slime_swe.rollout.scheduling.base import Batch, Outcome

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
        """Of informative groups among those that are judged. As if one more had been: not 0, and 1 at the start."""
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
        """Raises `NothingInformative` if it was one too many."""
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
        given_back = sorted(group for group in (*self._running, *self._ended) if group > chosen[-1])
        self._running.clear()
        self._ended.clear()
        return Batch(chosen, [max(0, version - self.lag)] * len(chosen), given_back)

    def _informative(self) -> int:
        return list(self._ended.values()).count(Outcome.INFORMATIVE)
