"""An outage is a pause: nothing is lost, and little is tried meanwhile. On a simulated clock."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from collections import Counter

import pytest

from slime_swe.data_sources.slime_plugin import TaskDataSource
from slime_swe.errors import InfrastructureError
from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.rollout.collect import Driver, Rollout
from slime_swe.rollout.evaluation import evaluate
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Player
from slime_swe.rollout.records import flatten, write_failure
from slime_swe.rollout.scheduling.outage import LONGEST, Outages
from slime_swe.rollout.scheduling.schedulers import DynamicSampling, PacedAdmission
from slime_swe.sample import Sample
from slime_swe.sandbox.base import SandboxError
from tests.rollout.test_collect import SIZE, TRIES, Played, forty, make

LONG = 1800.0  # seconds of an episode, at most


class Machines:
    """Of which a part is out from `start` on for some seconds: `opening` breaks what begins, `engine` also what is
    being played, and `grading` what is graded."""

    def __init__(self, part: str, start: float, seconds: float) -> None:
        self.part, self.start, self.end = part, start, start + seconds
        self.dice = random.Random(1)
        self.tries = self.playing = self.most = 0  # tries: that began during the outage
        self.generated, self.cut = Counter[int | None](), Counter[int | None]()

    def _out(self, part: str) -> bool:
        now = asyncio.get_running_loop().time()
        out = self.start <= now < self.end and part in (self.part, "opening" if self.part == "engine" else "")
        self.tries += out
        return out

    async def generate(self, args: Namespace, sample: Sample, params: dict) -> Sample:
        if self._out("opening"):
            await asyncio.sleep(0.1)
            write_failure(sample, "sandbox_error", "refused")
            return sample
        self.playing += 1
        self.most = max(self.most, self.playing)
        begun = asyncio.get_running_loop().time()
        seconds = LONG * self.dice.uniform(0.1, 1.0)
        if self.part == "engine" and begun < self.start < begun + seconds:
            await asyncio.sleep(self.start - begun)
            self.playing -= 1
            self.cut[sample.index] += 1
            write_failure(sample, "engine_error", "no connection")
            return sample
        await asyncio.sleep(seconds)
        self.playing -= 1
        self.generated[sample.index] += 1
        sample.status = Sample.Status.COMPLETED
        return sample

    async def reward(self, args: Namespace, sample: Sample) -> float:
        if self._out("grading"):
            raise SandboxError("refused")
        await asyncio.sleep(5.0)
        return 1.0


@pytest.fixture(autouse=True)
def seeded():
    """Pauses are shortened by chance."""
    random.seed(5)


def scheduler_of(schedule: str, batch: int) -> DynamicSampling | PacedAdmission:
    return DynamicSampling(batch, 1.0) if schedule == "sync" else PacedAdmission(batch, 2)


async def rollouts_of(
    tmp_path, machines: Machines, schedule: str, slots: int, steps: int, limit: float = 3600.0
) -> tuple[list[Rollout], TaskDataSource]:
    batch = slots // SIZE
    made, source = make(tmp_path, Played(), batch=batch, slots=slots)
    player = Player(
        made.player.args, RolloutHooks(machines.generate, machines.reward, None), outages=Outages.within(limit)
    )
    driver = Driver(player, scheduler_of(schedule, batch), in_background=schedule == "continuous")
    rollouts = []
    for version in range(steps):
        rollouts.append(await driver.collect(source, version))
        await asyncio.sleep(60.0)  # training
    await driver.close()
    return rollouts, source


MORE = pytest.mark.extended("the rows of 8 in flight, and of 1,024 with sync for 20 minutes")


@pytest.mark.parametrize(
    ("slots", "seconds", "schedule"),
    [
        *((8, seconds, schedule) for seconds in (1.0, 60.0, 1200.0) for schedule in ("sync", "continuous")),
        (1024, 1200.0, "sync"),
        *(pytest.param(1024, seconds, "sync", marks=MORE) for seconds in (1.0, 60.0)),
        *(pytest.param(1024, seconds, "continuous", marks=MORE) for seconds in (1.0, 60.0, 1200.0)),
    ],
)
@pytest.mark.parametrize("part", ["opening", "engine", "grading"])
def test_an_outage_loses_nothing_and_is_no_task_s_fault(tmp_path, part, seconds, slots, schedule):
    machines = Machines(part, start=700.0, seconds=seconds)

    async def run() -> None:
        rollouts, source = await rollouts_of(tmp_path, machines, schedule, slots, steps=3)
        assert not any(rollout.dropped or rollout.requeued for rollout in rollouts)
        groups = [flatten(group) for rollout in rollouts for group in rollout.kept]
        assert len(groups) == 3 * slots // SIZE
        for group in groups:
            assert [sample.reward for sample in group] == [1.0] * SIZE, "each is complete, and nothing broken is in it"
        trained = [sample.index for group in groups for sample in group]
        assert len(set(trained)) == len(trained)
        assert {machines.generated[index] for index in trained} == {1}
        assert not source._quarantined

    simulate(run())
    assert machines.most <= slots
    few = slots * (TRIES + 2 * seconds / LONGEST)  # where so few are played that no outage is seen: each has its pauses
    assert machines.tries <= (few if slots == 8 else slots + 16 + 2 * seconds / LONGEST + 12)


@pytest.mark.parametrize("part", ["opening", "engine", "grading"])
def test_an_evaluation_waits_for_the_end_of_an_outage(tmp_path, part):
    machines = Machines(part, start=700.0, seconds=1200.0)

    async def run() -> None:
        made, _ = make(tmp_path, Played(), slots=16)
        player = Player(made.player.args, RolloutHooks(machines.generate, machines.reward, None))
        samples = await evaluate(player, forty("x"))
        lost = [sample.index for sample in samples if sample.reward != 1.0]
        assert len(lost) <= (part == "grading"), "the first alone, as gradings begin minutes apart"
        assert set(machines.generated.values()) == {1}

    simulate(run())
    assert machines.tries <= 80 + 16 + 2 * 1200.0 / LONGEST + 12, "each of the 80 breaks about once"


def test_an_evaluation_of_machines_that_stay_broken_ends_within_the_limit(tmp_path):
    machines = Machines("opening", start=0.0, seconds=1e9)

    async def run() -> float:
        made, _ = make(tmp_path, Played(), slots=16)
        made.player.args.swe_outage_limit = 600.0
        player = Player(made.player.args, RolloutHooks(machines.generate, machines.reward, None))
        with pytest.raises(InfrastructureError, match=r"sandbox_error: refused.*rollout.outage_limit=600"):
            await evaluate(player, forty("x"))
        return asyncio.get_running_loop().time()

    assert 600.0 <= simulate(run()) < 600.0 + 2 * LONGEST


def test_an_episode_that_alone_can_not_be_played_is_given_up_after_half_of_the_limit(tmp_path):
    """The others of its group are finished, and nothing else is tried."""
    machines = Machines("", 0.0, 0.0)

    async def generate(args: Namespace, sample: Sample, params: dict) -> Sample:
        if sample.index:
            return await machines.generate(args, sample, params)
        await asyncio.sleep(0.1)
        write_failure(sample, "sandbox_error", "refused")
        return sample

    async def run() -> float:
        made, source = make(tmp_path, Played(), batch=1, slots=8)
        hooks = RolloutHooks(generate, machines.reward, None)
        player = Player(made.player.args, hooks, outages=Outages.within(3 * 3600.0))
        rollout = await Driver(player, DynamicSampling(1, 1.0)).collect(source, 0)
        (group,) = rollout.kept
        assert [sample.status.value for sample in flatten(group)] == ["aborted"] + ["completed"] * 3
        return asyncio.get_running_loop().time()

    assert 1.5 * 3600.0 <= simulate(run()) < 1.5 * 3600.0 + LONGEST


@pytest.mark.parametrize("alone", [2, 8])
def test_groups_that_alone_can_not_be_played_give_way_and_end_no_run(tmp_path, alone):
    """All others of the batch begin before these break: one try speaks for its group, which is put off."""
    machines = Machines("", 0.0, 0.0)

    async def generate(args: Namespace, sample: Sample, params: dict) -> Sample:
        if sample.group_index >= alone:
            return await machines.generate(args, sample, params)
        machines.tries += 1
        await asyncio.sleep(0.1)
        write_failure(sample, "sandbox_error", "no such image")
        return sample

    async def run() -> float:
        batch = alone + 2
        made, source = make(tmp_path, Played(), batch=batch, slots=batch * SIZE)
        player = Player(made.player.args, RolloutHooks(generate, machines.reward, None))
        rollout = await Driver(player, DynamicSampling(batch, 1.0)).collect(source, 0)
        assert [flatten(group)[0].group_index for group in rollout.kept] == [*range(alone, alone + batch)]
        return asyncio.get_running_loop().time()

    assert simulate(run()) < 2 * LONG + 600.0
    assert machines.tries < alone * SIZE * TRIES


def test_gradings_that_a_machine_breaks_are_no_outage_of_one_group_and_cost_no_other(tmp_path):
    """Two of a group can't be graded: a grading that began later is sound, so they are not waited for."""
    machines = Machines("", 0.0, 0.0)

    async def reward(args: Namespace, sample: Sample) -> float:
        if sample.group_index == 0 and sample.index % SIZE > 1:
            raise SandboxError("the grader's image is gone")
        return 1.0

    async def run() -> float:
        made, source = make(tmp_path, Played(), batch=1, slots=8)
        player = Player(made.player.args, RolloutHooks(machines.generate, reward, None), outages=Outages.within(3600.0))
        rollout = await Driver(player, DynamicSampling(1, 1.0)).collect(source, 0)
        (group,) = rollout.kept
        assert [sample.status.value for sample in flatten(group)] == ["completed"] * 2 + ["aborted"] * 2
        assert max(machines.generated.values()) == 1, "a finished episode is only graded again"
        return asyncio.get_running_loop().time()

    assert simulate(run()) < LONG + LONGEST
