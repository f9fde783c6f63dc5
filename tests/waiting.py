"""Waiting for what other processes, threads and tasks do: it ends at the event, and fails after a generous time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

GENEROUS = 60.0  # seconds; what is waited for usually takes a few at most


def wait_for(ready: Callable[[], object], what: str, seconds: float = GENEROUS) -> None:
    """Return when `ready()` is true. Fails with `what` where that takes longer than `seconds`."""
    given_up = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > given_up:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.1)


async def until(ready: Callable[[], object], what: str, seconds: float = GENEROUS) -> None:
    """`wait_for` for a test whose own loop must go on meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            while not ready():
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise AssertionError(f"{what}: not within {seconds:g} s") from error
