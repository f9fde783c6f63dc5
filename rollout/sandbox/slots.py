"""`Slots`: how many sandboxes of a pool are open at once, by what the machine bears."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from slime_swe.rollout.scheduling.concurrency import HIGH_MEMORY, Concurrency

SECONDS = 1.0  # between two looks at the machine
_SOME = re.compile(r"some avg10=([\d.]+)")  # per cent

_log = logging.getLogger(__name__)


class Slots:
    """At most `limit` at once, in order of arrival.

    With `least` and `pressure` the limit adapts to the machine between `least` and `most`, by `Concurrency`; else it is
    `most`. What is open stays open when it shrinks; what wants to open waits. Those that come and wait look at the
    machine, so that nothing runs where none does. pressure: a folder with the files `cpu` and `memory` of Linux's
    /proc/pressure. Where they can't be read, as on kernels that were built or booted without, the limit is `most` too.

    Not covered: pressure is the whole machine's, whoever causes it; that of a container's own limit is not looked at.
    """

    def __init__(self, most: int, least: int | None = None, pressure: Path | None = None) -> None:
        self.limit, self.in_use = most, 0
        self._peak = 0  # most in use since the machine was looked at
        self._pressure = pressure
        self._concurrency = Concurrency(least, most) if least is not None and read_pressure(pressure) else None
        self._looked = 0.0
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of them, inside the context."""
        async with self._turn:
            while self.in_use >= self.look():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._concurrency is None else SECONDS):
                        await self._changed.wait()
            self.in_use += 1
            self._peak = max(self._peak, self.in_use)
        try:
            yield
        finally:
            self.in_use -= 1
            self._changed.set()

    def opened(self, kind: Hashable, seconds: float) -> None:
        """What has a slot has opened: see `Concurrency.opened`."""
        if self._concurrency is not None:
            self._concurrency.opened(kind, seconds)

    def look(self) -> int:
        """The limit, by how the machine is now, or was less than a second ago."""
        now = time.monotonic()
        if self._concurrency is not None and now - self._looked >= SECONDS:
            self._looked = now
            found = read_pressure(self._pressure)
            if found is not None:
                self._adapt(self._concurrency, *found)
        return self.limit

    def _adapt(self, concurrency: Concurrency, cpu: float, memory: float) -> None:
        before, peak, self._peak = self.limit, self._peak, self.in_use
        self.limit = concurrency.observe(in_use=peak, cpu_pressure=cpu, memory_pressure=memory)
        if self.limit < before:
            _log.log(
                logging.WARNING if memory > HIGH_MEMORY else logging.INFO,  # busy processors are what a run wants
                "this machine bears fewer sandboxes: %d at once from now on, %d before, %d were open; some process "
                "waited %.0f %% of the last 10 s for a CPU, and %.0f %% for memory",
                *(self.limit, before, peak, 100 * cpu, 100 * memory),
            )


def read_pressure(folder: Path | None) -> tuple[float, float] | None:
    """For CPU and for memory, the share of the last 10 s in which some process waited; None where it is not known."""
    if folder is None:
        return None
    try:
        cpu, memory = (_SOME.match((folder / name).read_text(encoding="ascii")) for name in ("cpu", "memory"))
    except OSError:
        return None
    return None if cpu is None or memory is None else (float(cpu[1]) / 100, float(memory[1]) / 100)
