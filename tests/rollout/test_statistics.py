"""The clock of an episode stands still while the engine samples, and begins when its sandbox is open."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from slime_swe.rewards.redteam.gate import ScriptedAgent
from slime_swe.rollout.agents.toy_task import toy_task
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import EpisodeStatistics, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.sandbox import SandboxPool


async def play(statistics: EpisodeStatistics, *waits: tuple[float, float]) -> None:
    """Model calls, each from one moment to another, at once."""

    async def call(start: float, end: float) -> None:
        await asyncio.sleep(start)
        with statistics.engine_time():
            await asyncio.sleep(end - start)

    await asyncio.gather(*(call(*wait) for wait in waits))


@pytest.mark.parametrize("waits", [[(0, 0.9)], [(0, 0.6), (0.3, 0.9)], [(0, 0.9), (0.3, 0.6)], [(0, 0.3), (0.35, 0.9)]])
async def test_calls_one_by_one_and_at_once_cost_no_budget(waits):
    statistics = EpisodeStatistics()
    async with asyncio.timeout(0.6) as statistics.budget:
        await play(statistics, *waits)
    assert statistics.engine_seconds > 0.8


async def test_the_time_between_calls_does():
    statistics = EpisodeStatistics()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1) as statistics.budget:
            await play(statistics, (0, 0.1), (0.3, 0.4))


async def test_a_call_that_fails_starts_the_clock_again():
    statistics = EpisodeStatistics()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05) as statistics.budget:
            with pytest.raises(ValueError), statistics.engine_time():
                raise ValueError
            await asyncio.sleep(1)


async def test_a_call_that_comes_while_the_budget_expires_is_timed():
    statistics = EpisodeStatistics()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05) as statistics.budget:
            try:
                await asyncio.sleep(30)
            finally:
                await play(statistics, (0, 0.2), (0.1, 0.3))
    assert 0.2 < statistics.engine_seconds < 0.4
    await play(statistics, (0, 0.2))
    assert statistics.engine_seconds > 0.4, "a call that has ended still counts"


@pytest.mark.parametrize("wall", [0.0, 0.5])
async def test_a_call_may_end_after_the_budget_is_over(wall):
    class Leaving(ScriptedAgent):
        """An agent whose program's call is in flight when it ends, by itself or by the clock."""

        async def run(self, task, sandbox, session, sampling, statistics):
            self.statistics, begun = statistics, asyncio.Event()
            self.call = asyncio.create_task(self.ask(begun))
            await begun.wait()
            await asyncio.sleep(30 if wall else 0)
            return StopReason.SUBMITTED

        async def ask(self, begun):
            with self.statistics.engine_time():
                begun.set()
                await asyncio.sleep(30)

    agent = Leaving("true")
    async with SandboxPool("subprocess") as pool:
        episode = await run_episode(agent, toy_task(), pool, Sampling({}), time_budget=20.0, wall_time_budget=wall)
    assert episode.stop_reason is (StopReason.TIME_BUDGET if wall else StopReason.SUBMITTED)
    agent.call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await agent.call
    assert agent.statistics.engine_seconds > 0


async def test_the_wait_for_a_sandbox_costs_no_budget():
    class Full:
        """A pool that has room after longer than the budget."""

        @asynccontextmanager
        async def open(self, *where):
            await asyncio.sleep(1.6)
            async with pool.open(*where) as sandbox:
                yield sandbox

    async with SandboxPool("subprocess") as pool:
        episode = await run_episode(ScriptedAgent("true"), toy_task(), Full(), Sampling({}), time_budget=1.5)
    assert episode.stop_reason is StopReason.SUBMITTED
