"""Rollout schedules on a simulated clock, from which `slime-swe plan` and `benchmarks/rollout_schedule.py` take times.

A schedule here is a run's own `Driver`, `Player` and scheduler (`slime_swe.rollout`), with hooks that play episodes
(`workload.py`) on simulated machines (`machines.py`); a `Ledger` counts what comes of them.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from argparse import Namespace
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.plan.simulation.machines import Aborted, Engine, Machines, Processors, Stopwatch
from slime_swe.launch.plan.simulation.workload import Script, Workload
from slime_swe.rollout.client import Gate
from slime_swe.rollout.collect import Driver, Rollout
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Group, Player
from slime_swe.rollout.records import flatten
from slime_swe.rollout.scheduling.schedulers import DynamicSampling, PacedAdmission, Scheduler
from slime_swe.sample import Sample

MAX_OVER_SAMPLING = 4.0  # more than one over the share of informative groups, which is 0.4 in `Assumed`


@dataclass
class Ledger:
    """The machines, and every attempt on them.

    size: episodes of a group. filtered: groups whose episodes all end alike are not informative. grades_in_slots: an
    episode keeps its slot until it is graded. most_open: episodes that ran at once, at most.
    """

    workload: Workload
    machines: Machines
    slots: int
    size: int
    filtered: bool = True
    grades_in_slots: bool = False
    version: int = 0
    most_open: int = 0
    attempts: dict[tuple[int, int], list[Attempt]] = field(default_factory=dict)  # (group, member) -> its attempts
    begun: dict[int, int] = field(default_factory=dict)  # group -> version under which it first began
    trained: list[Trained] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # of the training steps

    def __post_init__(self) -> None:
        self.engine = Engine(self.machines)
        self.processors = Processors(self.machines.cores)
        self.gate = Gate()  # of the episodes' calls, where a schedule pauses them
        self.sampling = Stopwatch()  # stopped while co-located GPUs train
        self._open = 0

    async def play_whole(self, group: int, member: int) -> None:
        """Play an episode. What infrastructure breaks begins again; the rest of a call that an engine drops follows."""
        while True:
            try:
                return await self.play(group, member, self._sample_whole)
            except Broken:
                continue

    async def play(self, group: int, member: int, sample: Callable[[int], Awaitable[float]]) -> None:
        """Make one attempt at an episode. sample: makes a call of so many tokens, and returns its seconds. Raises what
        that does, such as `Aborted`; `Broken` where infrastructure ends the episode."""
        tries = self.attempts.setdefault((group, member), [])
        script = self.workload.script(group, member, len(tries))
        attempt = Attempt(script, self.version)
        tries.append(attempt)
        self.begun.setdefault(group, self.version)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            await self._run(attempt, script.opening)
            for number, (tokens, seconds) in enumerate(script.turns):
                if number == script.breaks:
                    attempt.broken = True
                    raise Broken
                attempt.calls += await sample(tokens)
                attempt.tokens += tokens
                await self._run(attempt, seconds)
        except Aborted:
            attempt.lost = True
            raise
        finally:
            self._open -= 1
        attempt.ended = True

    async def _sample_whole(self, tokens: int) -> float:
        left, seconds = float(tokens), 0.0
        while True:
            try:
                async with self.gate.passing():
                    return seconds + await self.engine.sample(left)
            except Aborted as dropped:
                left, seconds = dropped.tokens, seconds + dropped.seconds

    async def _run(self, attempt: Attempt, seconds: float) -> None:
        started = self.sampling()
        await self.processors.run(seconds)
        attempt.commands += self.sampling() - started

    async def grade(self, group: int, member: int) -> bool:
        """Grade an episode, and say whether it solved its task."""
        attempt = self.attempts[group, member][-1]
        if self.grades_in_slots:
            await self._run(attempt, attempt.script.grading)
        else:
            await self.processors.run(attempt.script.grading)
        return attempt.script.solved

    def informative(self, group: int) -> bool:
        solved = [self.attempts[group, member][-1].script.solved for member in range(self.size)]
        return not self.filtered or (any(solved) and not all(solved))

    def uniform(self, group: int) -> bool:
        """Say whether all episodes of a group have ended, all alike."""
        tries = [self.attempts.get((group, member)) for member in range(self.size)]
        return all(attempts and attempts[-1].ended for attempts in tries) and not self.informative(group)

    def informative_rate(self, first: int) -> float:
        """Return the share of informative groups, from the `first` trained one on, among those that the trained ones
        were chosen of."""
        chosen = [trained.group for trained in self.trained]
        passed = range(max(chosen[:first], default=-1) + 1, max(chosen) + 1)
        uniform = sum(self.uniform(group) for group in passed)
        count = len(chosen) - first
        return count / (count + uniform)

    def lose(self, group: int) -> None:
        """Note that the schedule throws away what a group has, finished or not."""
        for member in range(self.size):
            for attempt in self.attempts.get((group, member), ()):
                attempt.lost = True

    def train(self, groups: list[int]) -> None:
        for group in groups:
            last = [self.attempts[group, member][-1] for member in range(self.size)]
            staleness = self.version - min(attempt.version for attempt in last)
            lengths = tuple(attempt.script.tokens for attempt in last)
            self.trained.append(Trained(group, self.version, lengths, self.informative(group), staleness))

    def stepped(self) -> None:
        """Note that a training step has ended, and that its weights are with the engines."""
        self.version += 1
        self.ends.append(asyncio.get_running_loop().time())

    def every_attempt(self) -> list[Attempt]:
        return [attempt for tries in self.attempts.values() for attempt in tries]

    def slot_use(self) -> float:
        """Return the share of all slots' seconds, while sampling may run, that was not thrown away or idle."""
        useful = math.fsum(attempt.progress for attempt in self.every_attempt() if attempt.kept)
        return useful / (self.slots * self.sampling())

    def figures(self, bound: int) -> dict[str, float]:
        """Return the figures of the run. bound: what began at least so many versions before the last step has had time
        to be trained."""
        steps = len(self.ends)
        everything = self.every_attempt()
        informative = sum(trained.informative for trained in self.trained)
        if not informative:
            raise UserError(f"none of {len(self.trained)} trained groups was informative: give more steps")
        staleness = [trained.staleness for trained in self.trained]
        lost = [attempt for attempt in everything if attempt.lost]
        return {
            "slot_use": self.slot_use(),
            "seconds_per_group": self.ends[-1] / informative,
            "step_seconds": self.ends[-1] / steps,
            "episodes_lost": len(lost) / len(everything),
            "tokens_discarded": sum(attempt.tokens for attempt in lost),
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": max(staleness),
            "ks": self._distance(steps - 1 - bound),
        }

    def _distance(self, last: int) -> float:
        """Return the distance between the lengths of trained episodes and of all that the policy set out to sample:
        both of the informative groups that began under this version or an earlier one, all of them at their first
        attempts."""
        old = [group for group, version in self.begun.items() if version <= last]
        first = [[self.workload.script(group, member, 0) for member in range(self.size)] for group in old]
        sampled = [
            script.tokens
            for group in first
            if 0 < sum(script.solved for script in group) < self.size
            for script in group
        ]
        groups = set(old)
        lengths = [
            length
            for trained in self.trained
            if trained.group in groups and trained.informative
            for length in trained.lengths
        ]
        if not lengths:
            raise UserError("no group that began early enough was trained: give more steps")
        return kolmogorov_smirnov(lengths, sampled)


Schedule = Callable[[Ledger, int, int], Awaitable[None]]
"""Trains that many steps of that many groups: (ledger, batch_size, steps)."""


# The records of simulated episodes, and the figures that come of them.
@dataclass
class Attempt:
    """One try at an episode. version: of its begin. calls, commands: its seconds in these while sampling might run."""

    script: Script
    version: int
    calls: float = 0.0
    commands: float = 0.0
    tokens: int = 0
    ended: bool = False
    lost: bool = False  # the schedule threw it away
    broken: bool = False  # infrastructure did

    @property
    def progress(self) -> float:
        return self.calls + self.commands

    @property
    def kept(self) -> bool:
        return not (self.lost or self.broken)


@dataclass(frozen=True)
class Trained:
    group: int
    version: int
    lengths: tuple[int, ...]
    informative: bool
    staleness: int


class Broken(Exception):
    """Infrastructure ended the episode."""


def kolmogorov_smirnov(ours: list[int], theirs: list[int]) -> float:
    """Return the largest difference of the two empirical distribution functions."""
    one, other = sorted(ours), sorted(theirs)
    return max(
        abs(bisect.bisect_right(one, value) / len(one) - bisect.bisect_right(other, value) / len(other))
        for value in {*one, *other}
    )


class SimulatedRun:
    """A run's data source and hooks. A group's number is its place in the data; an episode is its sample's `index`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._requeued: deque[int] = deque()
        self._fresh = 0

    def driver(self, scheduler: Scheduler, *, slots: int = 0, **options: Any) -> Driver:
        """Make the driver of a schedule. slots: the ledger's where it is 0."""
        args = _arguments(slots or self.ledger.slots)
        return Driver(Player(args, RolloutHooks(self.generate, self.reward, self.keep)), scheduler, **options)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [self._group(self._next()) for _ in range(num_samples)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take what the schedule gives back: all that these groups have is thrown away, finished or not."""
        groups = [_number(group) for group in samples]
        for group in groups:
            self.ledger.lose(group)
        self._requeued = deque(sorted((*self._requeued, *groups)))

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
        if self._requeued:
            return self._requeued.popleft()
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
    """Train in turns. When a batch is full, the engines drop their calls, and episodes pause until training ends."""
    run, scheduler = SimulatedRun(ledger), PacedAdmission(batch_size, max_staleness)
    await train_in_turns(run, run.driver(scheduler, gate=ledger.gate, abort=ledger.engine.drop), steps)


async def train_in_turns(run: SimulatedRun, driver: Driver, steps: int) -> None:
    """Collect and train batches in turns: sampling waits while a batch trains."""
    ledger = run.ledger
    for _ in range(steps):
        run.train(await driver.collect(run, ledger.version))
        ledger.sampling.stop()
        await asyncio.sleep(ledger.machines.train + ledger.machines.update)
        ledger.stepped()
        ledger.sampling.start()
    await driver.close()


async def ahead(ledger: Ledger, batch_size: int, steps: int, max_over_sampling: float = MAX_OVER_SAMPLING) -> None:
    """Collect batches as `sync` does, on other GPUs than train: the next one is sampled while one trains (SLiME's
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
    """Train on other GPUs: a batch is trained as soon as it is full, and sampling goes on meanwhile."""
    run = SimulatedRun(ledger)
    driver = run.driver(PacedAdmission(batch_size, max_staleness), in_background=True)
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
    """Return the arguments that a `Player` reads. The sampling parameters are not looked at here."""
    return Namespace(
        swe_max_attempts=1,
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
