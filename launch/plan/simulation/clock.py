"""A simulated clock.

`SimulatedLoop` is an asyncio event loop that never waits: where nothing is ready, it sets its clock to the next timer.
So coroutines run as they are, SLiME's own among them, and an hour of them takes as long as their Python code does.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWait(selectors.DefaultSelector):
    """Moves the clock instead of waiting. There is no file to watch: nothing outside the loop may wake it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every coroutine of the simulation waits for another")
        self.now += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and what it starts; whatever still runs when it returns is cancelled."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
