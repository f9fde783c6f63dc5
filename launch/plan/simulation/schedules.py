"""Our schedules: the schedulers of `slime_swe.rollout.scheduling`, driven on simulated machines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from slime_swe.launch.plan.simulation.ledger import Broken, Ledger
from slime_swe.rollout.scheduling.base import Batch, Outcome, Scheduler
from slime_swe.rollout.scheduling.dynamic import DynamicSampling
from slime_swe.rollout.scheduling.paced import PacedAdmission

MAX_OVER_SAMPLING = 4.0  # more than one over the share of informative groups, which is 0.4 in `Assumed`

Schedule = Callable[[Ledger, int, int], Awaitable[None]]
"""Trains that many steps of that many groups: (ledger, batch_size, steps)."""


class Rollout:
    """Episodes of the groups that a scheduler wants, in slots. A slot that comes free takes an episode of the oldest
    group with one to begin; a group begins when its first episode does. What infrastructure breaks begins again."""

    def __init__(self, ledger: Ledger, scheduler: Scheduler) -> None:
        self.ledger = ledger
        self.scheduler = scheduler
        self._waiting: deque[tuple[int, int]] = deque()  # episodes: (group, member)
        self._given_back: deque[int] = deque()
        self._running: dict[asyncio.Task[None], int] = {}  # episodes, with their groups
        self._slots = ledger.slots
        self._to_end: dict[int, int] = {}  # group -> episodes of it that have not ended
        self._fresh = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self.held = False

    async def batch(self) -> Batch:
        """Sample until the scheduler has a batch for the present weights. Raises what ended an episode, such as the
        scheduler's `NothingInformative`."""
        while (batch := self.scheduler.take(self.ledger.version)) is None:
            self.fill()
            self._changed.clear()
            await self._changed.wait()
            if self._error is not None:
                raise self._error
        return batch

    async def batch_alone(self) -> list[int]:
        """The groups of the next batch; the others are given back, and nothing more is sampled."""
        self.held = False
        batch = await self.batch()
        self.held = True
        self.give_back(list(batch.given_back))
        return list(batch.groups)

    def fill(self) -> None:
        while self._slots and not self.held:
            if not self._waiting:
                if self.scheduler.wanted(self.ledger.version) <= 0:
                    return
                self.begin_group()
            self._begin(*self._waiting.popleft())

    def begin_group(self) -> None:
        group = self._given_back.popleft() if self._given_back else self._fresh
        self._fresh += group == self._fresh
        self.scheduler.begin(group, self.ledger.version)
        self._to_end[group] = self.ledger.size
        self._waiting.extend((group, member) for member in range(self.ledger.size))

    def give_back(self, groups: list[int]) -> None:
        """Stop them and throw away what they have."""
        unwanted = set(groups)
        for task, group in self._running.items():
            if group in unwanted:
                task.cancel()
        self._waiting = deque(episode for episode in self._waiting if episode[0] not in unwanted)
        for group in groups:
            self.ledger.lose(group)
            del self._to_end[group]
        self._given_back = deque(sorted((*self._given_back, *groups)))

    def _begin(self, group: int, member: int) -> None:
        self._slots -= 1
        task = asyncio.create_task(self._episode(group, member))
        self._running[task] = group
        task.add_done_callback(self._episode_ended)

    def _episode_ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()):
            self._error = error
            self._changed.set()

    async def _episode(self, group: int, member: int) -> None:
        try:
            await self._play(group, member)
            if self.ledger.grades_in_slots:
                await self.ledger.grade(group, member)
        finally:
            self._slots += 1
        self.fill()
        if not self.ledger.grades_in_slots:
            await self.ledger.grade(group, member)
        self._to_end[group] -= 1
        if not self._to_end[group]:
            self.scheduler.end(group, Outcome.INFORMATIVE if self.ledger.informative(group) else Outcome.UNIFORM)
            self._changed.set()
            self.fill()

    async def _play(self, group: int, member: int) -> None:
        while True:
            try:
                return await self.ledger.play(group, member)
            except Broken:
                continue


async def sync(ledger: Ledger, batch_size: int, steps: int, max_over_sampling: float = MAX_OVER_SAMPLING) -> None:
    await train_in_turns(Rollout(ledger, DynamicSampling(batch_size, max_over_sampling)), steps)


async def train_in_turns(rollout: Rollout, steps: int) -> None:
    """Sampling waits while a batch trains."""
    ledger = rollout.ledger
    for _ in range(steps):
        ledger.train(await rollout.batch_alone())
        ledger.sampling.stop()
        await asyncio.sleep(ledger.machines.train + ledger.machines.update)
        ledger.stepped()
        ledger.sampling.start()


async def ahead(ledger: Ledger, batch_size: int, steps: int, max_over_sampling: float = MAX_OVER_SAMPLING) -> None:
    """Batches as with `sync`, by other GPUs than train: the next one is sampled while one trains (SLiME's
    `train_async.py`), and the weights change when both are done."""
    rollout = Rollout(ledger, DynamicSampling(batch_size, max_over_sampling))
    groups = await rollout.batch_alone()
    for _ in range(steps):
        ledger.train(groups)
        following = asyncio.create_task(rollout.batch_alone())
        await asyncio.sleep(ledger.machines.train)
        groups = await following
        await ledger.engine.update_weights()
        ledger.stepped()


async def carry(ledger: Ledger, batch_size: int, steps: int, max_staleness: int) -> None:
    """When a batch is full, the calls in flight finish, episodes pause at their next one, and training begins."""
    rollout = Rollout(ledger, PacedAdmission(batch_size, max_staleness))
    for _ in range(steps):
        batch = await rollout.batch()
        rollout.held = True
        ledger.train(list(batch.groups))
        await ledger.engine.drain()
        ledger.sampling.stop()
        await asyncio.sleep(ledger.machines.train + ledger.machines.update)
        ledger.stepped()
        ledger.sampling.start()
        ledger.engine.reopen()
        rollout.held = False


async def continuous(ledger: Ledger, batch_size: int, steps: int, max_staleness: int) -> None:
    """Training on other GPUs: a batch is trained as soon as it is full, and sampling goes on meanwhile."""
    rollout = Rollout(ledger, PacedAdmission(batch_size, max_staleness))
    for _ in range(steps):
        batch = await rollout.batch()
        ledger.train(list(batch.groups))
        rollout.fill()
        await asyncio.sleep(ledger.machines.train)
        await ledger.engine.update_weights()
        ledger.stepped()
