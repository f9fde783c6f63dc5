"""A model of SLiME's two rollout loops, on simulated machines.

It follows `slime/rollout/sglang_rollout.py` and `slime/rollout/fully_async_rollout.py` of commit 624b824a8, and
the order of `train.py` and `train_async.py`. `tests/contract/test_rollout_schedule.py` holds it
against SLiME's own code (`schedule_slime_real.py`): both train the same groups at the same times.

- `slime_sync`: groups are submitted a batch's worth at a time, whenever fewer than a batch's worth are left; uniform
  groups are dropped; the first informative groups to end are trained, and the others are thrown away, with their tasks.
- `slime_fully_async`: as many groups are submitted as there are slots, and as many may wait once they have ended.
  Nothing is dropped. A weight update aborts the calls in flight, and their episodes begin anew.

Both are given an agent that ends at its next model call after SLiME's abort, as SLiME asks of a generate function.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from slime_swe.launch.plan.simulation import Broken, Ledger
from slime_swe.launch.plan.simulation.machines import Aborted

POLL = 1.0  # seconds: of the worker
POLL_BATCH = 0.05  # of what waits for a batch


@dataclass
class Hooks:
    """What SLiME is given: the generate function, the reward and the filter."""

    ledger: Ledger
    stopped: Callable[[], bool] = lambda: False

    async def generate(self, group: int, member: int) -> bool:
        """False if it was aborted."""
        while True:
            try:
                await self.ledger.play(group, member, self._sample)
                return True
            except Aborted:
                return False
            except Broken:
                continue

    async def _sample(self, tokens: int) -> float:
        if self.stopped():
            raise Aborted(tokens, 0.0)
        return await self.ledger.engine.sample(tokens)

    async def reward(self, group: int, member: int) -> float:
        return float(await self.ledger.grade(group, member))


@dataclass
class Group:
    """rewards: of its members; None for one that has not ended."""

    number: int
    rewards: list[float | None]

    @property
    def uniform(self) -> bool:
        return len(set(self.rewards)) == 1


@dataclass
class Source:
    """Groups in order, those first that were put back."""

    size: int
    back: deque[Group] = field(default_factory=deque)
    _fresh: int = 0

    def take(self) -> Group:
        if self.back:
            return self.back.popleft()
        self._fresh += 1
        return Group(self._fresh - 1, [None] * self.size)


class Loops(Protocol):
    """SLiME's rollout functions. Numbers of groups are in order."""

    def __init__(self, ledger: Ledger, batch_size: int) -> None: ...

    async def rollout(self) -> list[int]:
        """One rollout of the synchronous loop."""
        ...

    async def worker(self) -> None:
        """What samples for the asynchronous loop, without end."""
        ...

    async def collect(self) -> list[int]:
        """One rollout of the asynchronous loop."""
        ...


class Slime:
    """The model of them."""

    def __init__(self, ledger: Ledger, batch_size: int) -> None:
        self.batch_size = batch_size
        self._source = Source(ledger.size)
        self._hooks = Hooks(ledger, lambda: self._aborted)
        self._slots = asyncio.Semaphore(ledger.slots)
        self._most = ledger.slots
        self._engine = ledger.engine
        self._aborted = False
        self._ended: deque[Group] = deque()

    async def _member(self, group: Group, member: int) -> None:
        if group.rewards[member] is not None:
            return
        async with self._slots:
            if self._aborted or not await self._hooks.generate(group.number, member):
                return
        group.rewards[member] = await self._hooks.reward(group.number, member)

    async def _group(self, group: Group) -> Group:
        if not self._aborted:
            await asyncio.gather(*(self._member(group, member) for member in range(len(group.rewards))))
        return group

    async def rollout(self) -> list[int]:
        pending: set[asyncio.Task[Group]] = set()
        data: list[int] = []
        left = 0
        while len(data) < self.batch_size:
            while left < self.batch_size:
                groups = [self._source.take() for _ in range(self.batch_size)]
                pending |= {asyncio.create_task(self._group(group)) for group in groups}
                left += self.batch_size
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for group in (task.result() for task in done):
                if group.uniform:
                    left -= 1
                elif len(data) < self.batch_size:
                    data.append(group.number)
        self._aborted = True
        self._engine.abort()
        if pending:
            await asyncio.wait(pending)
        self._aborted = False
        return sorted(data)

    async def worker(self) -> None:
        active: set[asyncio.Task[Group]] = set()
        while True:
            active = {task for task in active if not task.done()}
            while len(active) < self._most and len(self._ended) < self._most:
                task = asyncio.create_task(self._group(self._source.take()))
                task.add_done_callback(self._collect)
                active.add(task)
            await asyncio.sleep(POLL)

    def _collect(self, task: asyncio.Task[Group]) -> None:
        if task.cancelled():
            return
        group = task.result()
        (self._source.back if None in group.rewards else self._ended).append(group)

    async def collect(self) -> list[int]:
        data: list[int] = []
        while len(data) < self.batch_size:
            if self._ended:
                data.append(self._ended.popleft().number)
            else:
                await asyncio.sleep(POLL_BATCH)
        return sorted(data)


async def train(ledger: Ledger, steps: int, rollout: Callable[[], Awaitable[list[int]]]) -> None:
    """SLiME's `train.py`: what a rollout does not return is lost."""
    known: set[int] = set()
    for _ in range(steps):
        groups = await rollout()
        begun = {group for group, _ in ledger.attempts} - known
        for group in begun - set(groups):
            if not ledger.uniform(group):
                ledger.lose(group)
        known |= begun
        ledger.train(groups)
        ledger.sampling.stop()
        await asyncio.sleep(ledger.machines.train + ledger.machines.update)
        ledger.stepped()
        ledger.sampling.start()


async def train_async(ledger: Ledger, steps: int, rollout: Callable[[], Awaitable[list[int]]]) -> None:
    """SLiME's `train_async.py`: the next batch is collected while this one trains, and before the weights change."""
    groups = await rollout()
    for step in range(steps):
        following = asyncio.ensure_future(rollout())
        ledger.train(groups)
        await asyncio.sleep(ledger.machines.train)
        if step + 1 < steps:
            groups = await following
        ledger.engine.abort()
        await ledger.engine.update_weights()
        ledger.stepped()
    following.cancel()


async def slime_sync(ledger: Ledger, batch_size: int, steps: int, loops: type[Loops] = Slime) -> None:
    await train(ledger, steps, loops(ledger, batch_size).rollout)


async def slime_fully_async(ledger: Ledger, batch_size: int, steps: int, loops: type[Loops] = Slime) -> None:
    slime = loops(ledger, batch_size)
    worker = asyncio.create_task(slime.worker())
    await train_async(ledger, steps, slime.collect)
    worker.cancel()
