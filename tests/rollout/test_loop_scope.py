from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from slime_swe.rollout.loop_scope import close_loop_scope, opened_once


def test_what_a_loop_opened_is_closed_with_it():
    log = []

    @asynccontextmanager
    async def thing():
        log.append("open")
        await asyncio.sleep(0.01)
        yield "thing"
        log.append("close")

    async def use():
        assert await asyncio.gather(*(opened_once("key", thing) for _ in range(3))) == ["thing"] * 3

    asyncio.run(use())
    assert log == ["open", "close"]
    asyncio.run(use())
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

    with pytest.raises(ValueError, match="not yet"):
        await opened_once("k", thing)
    await asyncio.sleep(0)
    assert await opened_once("k", thing) == 2
    await close_loop_scope()
    assert attempts == []
    with pytest.raises(ValueError, match="not yet"):
        await opened_once("k", thing)
