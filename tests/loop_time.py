"""How long the event loop's own thread works without a break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HELD = 0.05  # seconds: what one input may take of it


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """How long the loop's own thread has worked between two of its rounds. What other threads do, and a busy machine,
    are not in it."""
    held: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            held.append(time.thread_time() - before)

    watching = asyncio.create_task(watch())
    try:
        yield held
    finally:
        watching.cancel()
