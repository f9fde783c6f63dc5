"""The clock of an episode stands still while the engine samples."""

from __future__ import annotations

import asyncio

import pytest

from slime_swe.rollout.episode import EpisodeStatistics


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
