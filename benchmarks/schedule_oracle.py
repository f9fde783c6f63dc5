"""Synchronous rollouts by one who knows beforehand what none can know: how soon can the batches of `sync` be there?

- `known_outcomes`: which groups are informative. Nothing is begun that is not needed, and never a second wave.
- `known_lengths`: also how long each episode is. The longest begins first.

Both train the first informative groups in the order of the data, as `sync` does; but what `sync` gives back may come to
something else when it is sampled anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from slime_swe.launch.plan.simulation.ledger import Ledger
from slime_swe.launch.plan.simulation.schedules import Rollout, train_in_turns
from slime_swe.launch.plan.simulation.workload import Script
from slime_swe.rollout.scheduling.base import Batch, Outcome


class KnowsOutcomes:
    """A `Scheduler` that begins exactly the groups up to the last one of its batch."""

    def __init__(self, batch_size: int, informative: Callable[[int], bool]) -> None:
        self._batch_size, self._informative = batch_size, informative
        self._begun = self._needed = 0  # numbers of groups are below these
        self._batch: list[int] = []
        self._running: set[int] = set()

    def wanted(self, version: int) -> int:
        while len(self._batch) < self._batch_size:
            if self._informative(self._needed):
                self._batch.append(self._needed)
            self._needed += 1
        return self._needed - self._begun

    def begin(self, group: int, version: int) -> None:
        self._begun = group + 1
        self._running.add(group)

    def end(self, group: int, outcome: Outcome) -> None:
        self._running.remove(group)

    def take(self, version: int) -> Batch | None:
        if self.wanted(version) or self._running:
            return None
        groups, self._batch = self._batch, []
        return Batch(groups, [version] * len(groups))


class LongestFirst(Rollout):
    """Begins all groups of a batch at once, and of their episodes the longest first."""

    def fill(self) -> None:
        if not self.held and self.scheduler.wanted(self.ledger.version) > 0:
            while self.scheduler.wanted(self.ledger.version) > 0:
                self.begin_group()
            self._waiting = deque(sorted(self._waiting, key=lambda episode: -self._turns(*episode)))
        super().fill()

    def _turns(self, group: int, member: int) -> int:
        return len(sound(self.ledger, group, member).turns)


async def known_outcomes(ledger: Ledger, batch_size: int, steps: int) -> None:
    await train_in_turns(Rollout(ledger, scheduler_of(ledger, batch_size)), steps)


async def known_lengths(ledger: Ledger, batch_size: int, steps: int) -> None:
    await train_in_turns(LongestFirst(ledger, scheduler_of(ledger, batch_size)), steps)


def scheduler_of(ledger: Ledger, batch_size: int) -> KnowsOutcomes:
    def informative(group: int) -> bool:
        return len({sound(ledger, group, member).solved for member in range(ledger.size)}) > 1

    return KnowsOutcomes(batch_size, informative)


def sound(ledger: Ledger, group: int, member: int) -> Script:
    """The first attempt that infrastructure does not break."""
    attempt = 0
    while (script := ledger.workload.script(group, member, attempt)).breaks is not None:
        attempt += 1
    return script
