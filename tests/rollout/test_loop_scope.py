from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from slime_swe.rollout.loop_scope import close_loop_scope, loop_scope


def test_what_a_loop_opened_is_closed_with_it():
    log = []

    @asynccontextmanager
    async def thing():
        log.append("open")
        await asyncio.sleep(0.01)
        yield "thing"
        log.append("close")

    async def use():
        scope = await loop_scope()
        assert await asyncio.gather(*(scope.get("key", thing) for _ in range(3))) == ["thing"] * 3
        return scope

    first = asyncio.run(use())
    assert log == ["open", "close"]
    assert asyncio.run(use()) is not first
    assert log == ["open", "close"] * 2


async def test_a_failed_opening_is_not_remembered_and_closing_can_be_early():
    attempts = []

    @asynccontextmanager
    async def thing():
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("not yet")
        yield len(attempts)
        attempts.clear()

    scope = await loop_scope()
    with pytest.raises(ValueError, match="not yet"):
        await scope.get("k", thing)
    await asyncio.sleep(0)
    assert await scope.get("k", thing) == 2
    await close_loop_scope()
    assert attempts == []
    assert await loop_scope() is not scope
