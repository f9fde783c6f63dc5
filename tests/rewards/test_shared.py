"""Results that all patches of a task share: who makes them, and what becomes of those that nobody waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import pytest

from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.mutated_files import _settled
from slime_swe.rewards.negative_control import ControlRun
from slime_swe.rewards.shared import cached
from slime_swe.rollout.loop_scope import close_loop_scope


class Making:
    """What is made, each time it is told to end."""

    def __init__(self) -> None:
        self.begun, self.cancelled = deque[asyncio.Future[str]](), 0

    async def __call__(self) -> str:
        self.begun.append(asyncio.get_running_loop().create_future())
        try:
            return await self.begun[-1]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def waiting(making: Making, count: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(cached("a", "key", making)) for _ in range(count)]
    await asyncio.sleep(0.01)
    return tasks


async def test_one_makes_it_for_all_and_one_that_is_cancelled_breaks_no_other():
    making = Making()
    first, second = await waiting(making, 2)
    first.cancel()
    await asyncio.sleep(0.01)
    making.begun[0].set_result("made")
    assert await second == "made" == await cached("a", "key", making)
    assert (len(making.begun), making.cancelled) == (1, 0)
    await close_loop_scope()


async def test_what_nobody_waits_for_ends_and_its_failure_is_no_later_caller_s():
    making = Making()
    for caller in await waiting(making, 2):
        caller.cancel()
    (later,) = await waiting(making, 1)
    assert (len(making.begun), making.cancelled) == (2, 1)
    making.begun[1].set_exception(GraderError("no sandbox today"))
    with pytest.raises(GraderError):
        await later
    (again,) = await waiting(making, 1)
    making.begun[2].set_result("made")
    assert await again == "made"
    await close_loop_scope()


SLOW = ControlRun(records={1: frozenset({"a"})}, timed_out=True)
WHOLE = ControlRun(passed=frozenset({"a::b"}))


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([WHOLE], WHOLE),
        ([SLOW, WHOLE], WHOLE),
        ([SLOW, SLOW], SLOW),
        ([SLOW, replace(SLOW, records={})], "at different places: the machine is too busy"),
    ],
)
async def test_a_control_whose_time_ran_out_is_made_again(runs, found):
    """By a control of the unpatched code that stops early, any value would seem to be the patch's own."""
    left = deque(runs)

    async def control() -> ControlRun:
        return left.popleft()

    if isinstance(found, str):
        with pytest.raises(GraderError, match=found):
            await _settled(control)
    else:
        assert await _settled(control) is found
    assert not left
