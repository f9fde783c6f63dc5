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
