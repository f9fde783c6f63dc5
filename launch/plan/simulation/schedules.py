"""Our schedules: a run's own `Driver`, `Player` and schedulers, with hooks that play episodes on simulated machines."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from slime_swe.launch.plan.simulation.ledger import Ledger
from slime_swe.rollout.driver import Driver, Rollout
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.player import Group, Player
from slime_swe.rollout.records import flatten
from slime_swe.rollout.scheduling.base import Scheduler
from slime_swe.rollout.scheduling.dynamic import DynamicSampling
from slime_swe.rollout.scheduling.paced import PacedAdmission
from slime_swe.sample import Sample

MAX_OVER_SAMPLING = 4.0  # more than one over the share of informative groups, which is 0.4 in `Assumed`

Schedule = Callable[[Ledger, int, int], Awaitable[None]]
"""Trains that many steps of that many groups: (ledger, batch_size, steps)."""


class SimulatedRun:
    """A run's data source and hooks. A group's number is its place in the data; an episode is its sample's `index`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._given_back: deque[int] = deque()
        self._fresh = 0

    def driver(self, scheduler: Scheduler, *, slots: int = 0, **options: Any) -> Driver:
        """slots: the ledger's where it is 0."""
        args = _arguments(slots or self.ledger.slots)
        return Driver(Player(args, RolloutHooks(self.generate, self.reward, self.keep)), scheduler, **options)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [self._group(self._next()) for _ in range(num_samples)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """What the schedule gives back: all that these groups have is thrown away, finished or not."""
        groups = [_number(group) for group in samples]
        for group in groups:
            self.ledger.lose(group)
        self._given_back = deque(sorted((*self._given_back, *groups)))

    async def generate(self, args: Namespace, sample: Sample, params: dict[str, Any]) -> Sample:
        group, member = self._place(sample)
        await self.ledger.play_whole(group, member)
        if self.ledger.grades_in_slots:
            sample.reward = float(await self.ledger.grade(group, member))
        sample.status = Sample.Status.COMPLETED
        return sample

    async def reward(self, args: Namespace, sample: Sample) -> float:
        return float(await self.ledger.grade(*self._place(sample)))

    def keep(self, args: Namespace, group: Group) -> bool:
        return self.ledger.informative(_number(flatten(group)))

    def train(self, rollout: Rollout) -> None:
        self.ledger.train([_number(flatten(group)) for group in rollout.kept])

    def _next(self) -> int:
        if self._given_back:
            return self._given_back.popleft()
        self._fresh += 1
        return self._fresh - 1

    def _group(self, number: int) -> list[Sample]:
        size = self.ledger.size
        return [Sample(group_index=number, index=number * size + member) for member in range(size)]

    def _place(self, sample: Sample) -> tuple[int, int]:
        assert sample.index is not None, sample
        return divmod(sample.index, self.ledger.size)


async def sync(ledger: Ledger, batch_size: int, steps: int, max_over_sampling: float = MAX_OVER_SAMPLING) -> None:
    run = SimulatedRun(ledger)
    await train_in_turns(run, run.driver(DynamicSampling(batch_size, max_over_sampling)), steps)


async def carry(ledger: Ledger, batch_size: int, steps: int, max_staleness: int) -> None:
    """When a batch is full, the engines drop their calls, and episodes pause until training has ended."""
    run, scheduler = SimulatedRun(ledger), PacedAdmission(batch_size, max_staleness)
    await train_in_turns(run, run.driver(scheduler, gate=ledger.gate, abort=ledger.engine.drop), steps)


async def train_in_turns(run: SimulatedRun, driver: Driver, steps: int) -> None:
    """Sampling waits while a batch trains."""
    ledger = run.ledger
    for _ in range(steps):
        run.train(await driver.collect(run, ledger.version))
        ledger.sampling.stop()
        await asyncio.sleep(ledger.machines.train + ledger.machines.update)
        ledger.stepped()
        ledger.sampling.start()
    await driver.close()


async def ahead(ledger: Ledger, batch_size: int, steps: int, max_over_sampling: float = MAX_OVER_SAMPLING) -> None:
    """Batches as with `sync`, by other GPUs than train: the next one is sampled while one trains (SLiME's
    `train_async.py`), and the weights change when both are done."""
    run = SimulatedRun(ledger)
    driver = run.driver(DynamicSampling(batch_size, max_over_sampling))
    rollout = await driver.collect(run, ledger.version)
    for _ in range(steps):
        run.train(rollout)
        following = asyncio.create_task(driver.collect(run, ledger.version))
        await asyncio.sleep(ledger.machines.train)
        rollout = await following
        await ledger.engine.update_weights()
        ledger.stepped()
    await driver.close()


async def continuous(ledger: Ledger, batch_size: int, steps: int, max_staleness: int) -> None:
    """Training on other GPUs: a batch is trained as soon as it is full, and sampling goes on meanwhile."""
    run = SimulatedRun(ledger)
    driver = run.driver(PacedAdmission(batch_size, max_staleness), goes_on=True)
    for _ in range(steps):
        run.train(await driver.collect(run, ledger.version))
        await asyncio.sleep(ledger.machines.train)
        await ledger.engine.update_weights()
        ledger.stepped()
    await driver.close()


def _number(group: list[Sample]) -> int:
    number = group[0].group_index
    assert number is not None, group
    return number


def _arguments(slots: int) -> Namespace:
    """What a `Player` reads. The sampling parameters are not looked at here."""
    return Namespace(
        sglang_server_concurrency=slots,
        sglang_enable_deterministic_inference=False,
        dynamic_sampling_filter_path="the simulated filter",
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=1,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
    )
