"""Who holds a lock of groups, and when."""

from __future__ import annotations

import asyncio
import random

from slime_swe.rewards.shared import GroupLock


class Holders:
    """Callers of one lock by name, in the order in which they enter."""

    def __init__(self) -> None:
        self.lock, self.entered = GroupLock(), []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def start(self, *names: str) -> None:
        """A caller's group is the first letter of its name."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.lock.held(name[0]):
            self.entered.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await self.tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        await asyncio.sleep(0)


async def test_a_group_shares_the_lock_and_others_wait():
    holders = Holders()
    await holders.start("a1", "a2", "b1")
    assert holders.entered == ["a1", "a2"]
    await holders.end("a1")
    assert holders.entered == ["a1", "a2"]
    await holders.end("a2")
    assert holders.entered == ["a1", "a2", "b1"]


async def test_newcomers_queue_behind_a_group_that_waits_and_enter_with_their_own():
    holders = Holders()
    await holders.start("a1", "b1", "a2", "c1", "b2")
    assert holders.entered == ["a1"]
    await holders.end("a1")
    assert holders.entered == ["a1", "b1", "b2"]
    await holders.start("b3")
    await holders.end("b1", "b2")
    assert holders.entered[3:] == ["a2"]
    await holders.end("a2")
    assert holders.entered[4:] == ["c1"]
    await holders.end("c1")
    assert holders.entered[5:] == ["b3"]


async def test_a_caller_that_is_cancelled_holds_nobody_up():
    holders = Holders()
    await holders.start("a1", "b1", "a2")
    await holders.cancel("b1")
    assert holders.entered == ["a1", "a2"], "it was all that a2 waited for"
    await holders.start("b2")
    await holders.cancel("a1")
    await holders.cancel("a2")
    assert holders.entered == ["a1", "a2", "b2"]


async def test_a_caller_that_is_cancelled_as_it_is_let_in_leaves():
    holders = Holders()
    await holders.start("a1", "b1", "c1")
    holders.ends["a1"].set()
    while not holders.tasks["a1"].done():
        await asyncio.sleep(0)
    await holders.cancel("b1")
    await holders.start("c2")
    assert holders.entered[-2:] == ["c1", "c2"]


async def test_a_caller_that_is_cancelled_in_the_step_in_which_the_lock_is_free_is_passed_over():
    holders = Holders()
    await holders.start("a1", "b1", "c1")
    holders.ends["a1"].set()
    holders.tasks["b1"].cancel()
    await holders.tasks["a1"]
    await asyncio.wait([holders.tasks["b1"]])
    await asyncio.sleep(0)
    assert holders.entered == ["a1", "c1"]


async def test_groups_never_overlap_and_all_enter_whatever_is_cancelled():
    rng, lock, inside, entered = random.Random(0), GroupLock(), [], set()

    async def hold(number: int) -> None:
        group = number % 3
        async with lock.held(group):
            inside.append(group)
            assert set(inside) == {group}
            entered.add(number)
            try:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                inside.remove(group)

    tasks = []
    for number in range(500):
        tasks.append(asyncio.create_task(hold(number)))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if rng.random() < 0.2:
            rng.choice(tasks).cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
    assert {number for number, end in enumerate(ends) if end is None} <= entered
