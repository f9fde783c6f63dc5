"""A simulated clock.

`SimulatedLoop` is an asyncio event loop that never waits: where nothing is ready, it sets its clock to the next timer.
So coroutines run as they are, SLiME's own among them, and an hour of them takes as long as their Python code does.
What changes its next event with almost every event, as `machines.Shared`, is an `Occurrence` in place of a timer.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Occurrence(Protocol):
    """due: when it `occurs`, which sets it anew; infinity where it does not."""

    due: float

    def occurs(self) -> None: ...


class _NoWait(selectors.DefaultSelector):
    """Moves the clock instead of waiting. There is no file to watch: nothing outside the loop may wake it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.occurrences: list[Occurrence] = []

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:  # coroutines are ready
            return []
        first, due = None, math.inf if timeout is None else self.now + timeout
        for occurrence in self.occurrences:
            if occurrence.due < due:
                first, due = occurrence, occurrence.due
        if first is not None:
            self.now = due
            first.occurs()
        elif timeout is None:
            raise RuntimeError("every coroutine of the simulation waits for another")
        else:
            self.now += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def watch(self, occurrence: Occurrence) -> None:
        """Let it occur when it is due, from now on."""
        self._clock.occurrences.append(occurrence)


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and what it starts; whatever still runs when it returns is cancelled."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
