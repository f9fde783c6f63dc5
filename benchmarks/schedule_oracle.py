"""Synchronous rollouts by one who knows beforehand what none can know: how soon can the batches of `sync` be there?

- `known_outcomes`: which groups are informative. Nothing is begun that is not needed, and never a second wave.
- `known_lengths`: also how long each episode is. The longest begins first.

Both train the first informative groups in the order of the data, as `sync` does; but what `sync` gives back may come to
something else when it is sampled anew.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from slime_swe.launch.plan.simulation import Ledger, SimulatedRun, train_in_turns
from slime_swe.launch.plan.simulation.workload import Script
from slime_swe.rollout.scheduling.schedulers import Batch, Outcome
from slime_swe.sample import Sample


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


class LongestFirst(SimulatedRun):
    """Of the episodes that wait for a slot, the longest begins first."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._waiting: list[tuple[int, int, asyncio.Event]] = []  # a heap: turns, index, its turn to begin
        self._free = ledger.slots

    async def generate(self, args: Namespace, sample: Sample, params: dict[str, Any]) -> Sample:
        assert sample.index is not None, sample
        begins, turns = asyncio.Event(), len(sound(self.ledger, *divmod(sample.index, self.ledger.size)).turns)
        heapq.heappush(self._waiting, (-turns, sample.index, begins))
        await asyncio.sleep(0)  # until all that begin at once are here
        self._begin()
        await begins.wait()
        try:
            return await super().generate(args, sample, params)
        finally:
            self._free += 1
            self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            heapq.heappop(self._waiting)[2].set()
            self._free -= 1


async def known_outcomes(ledger: Ledger, batch_size: int, steps: int) -> None:
    run = SimulatedRun(ledger)
    await train_in_turns(run, run.driver(scheduler_of(ledger, batch_size)), steps)


async def known_lengths(ledger: Ledger, batch_size: int, steps: int) -> None:
    run = LongestFirst(ledger)
    driver = run.driver(scheduler_of(ledger, batch_size), slots=sys.maxsize)  # they are given out by `run`
    await train_in_turns(run, driver, steps)


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
