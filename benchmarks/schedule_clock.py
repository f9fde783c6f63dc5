"""A simulated clock, and the machines that simulated episodes run on.

`SimulatedLoop` is an asyncio event loop that never waits: where nothing is ready, it sets its clock to the next timer.
So coroutines run as they are, SLiME's own among them, and an hour of them takes as long as their Python code does.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field
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


class Aborted(Exception):
    """The engine dropped the request."""


@dataclass(frozen=True)
class Cluster:
    """What the machines do in a second. All of it is assumed; none was measured.

    speed: tokens a second of one request. knee: requests a node serves at that speed; with more, all of them together
    are as fast as these. cpus: of a node; a tool call takes one, and with more calls than CPUs all are slower.
    train, update: seconds of one training step, and of bringing its weights to the engines.
    """

    nodes: int
    speed: float = 60.0
    knee: int = 64
    cpus: int = 96
    train: float = 180.0
    update: float = 10.0


class Engine:
    """The serving engines of all nodes. A call's speed is set when it begins, by the calls in flight at that moment."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls: dict[asyncio.Future[bool], asyncio.TimerHandle] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def sample(self, tokens: int) -> float:
        """Sample so many tokens; returns the seconds that this took, less pauses. Raises `Aborted`."""
        while not self._open.is_set():
            await self._open.wait()
        loop = asyncio.get_running_loop()
        crowd = max(1.0, (len(self._calls) + 1) / (self._cluster.knee * self._cluster.nodes))
        seconds = tokens * crowd / self._cluster.speed
        call = loop.create_future()
        self._calls[call] = loop.call_later(seconds, _finish, call)
        self._idle.clear()
        try:
            if not await call:
                raise Aborted
        finally:
            self._calls.pop(call).cancel()
            if not self._calls:
                self._idle.set()
        return seconds

    def abort(self) -> None:
        for call in self._calls:
            if not call.done():
                call.set_result(False)

    async def update_weights(self) -> None:
        """Calls in flight stop, and go on after it where they were; none begins meanwhile."""
        loop = asyncio.get_running_loop()
        self._open.clear()
        left = {call: timer.when() - loop.time() for call, timer in self._calls.items() if not call.done()}
        for call in left:
            self._calls[call].cancel()
        await asyncio.sleep(self._cluster.update)
        for call, seconds in left.items():
            if call in self._calls:
                self._calls[call] = loop.call_later(seconds, _finish, call)
        self._open.set()

    async def drain(self) -> None:
        """No call begins any more; wait for those in flight."""
        self._open.clear()
        await self._idle.wait()

    def reopen(self) -> None:
        self._open.set()


def _finish(call: asyncio.Future[bool]) -> None:
    if not call.done():
        call.set_result(True)


@dataclass
class Processors:
    """The CPUs of all nodes. A command's slowness is set when it begins, by the commands that run at that moment."""

    count: int
    _running: int = 0

    async def run(self, seconds: float) -> None:
        self._running += 1
        try:
            await asyncio.sleep(seconds * max(1.0, self._running / self.count))
        finally:
            self._running -= 1


@dataclass
class SamplingTime:
    """Seconds in which sampling may run: of co-located GPUs all but those of training."""

    _passed: float = 0.0
    _since: float | None = field(default=0.0)

    def __call__(self) -> float:
        return self._passed + (0.0 if self._since is None else asyncio.get_running_loop().time() - self._since)

    def stop(self) -> None:
        self._passed, self._since = self(), None

    def start(self) -> None:
        self._since = asyncio.get_running_loop().time()
