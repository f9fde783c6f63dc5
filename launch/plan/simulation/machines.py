"""The machines that simulated episodes run on."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar


class Aborted(Exception):
    """The engine dropped the request. tokens: that it had not sampled yet. seconds: that it took until then."""

    def __init__(self, tokens: float, seconds: float) -> None:
        super().__init__(tokens, seconds)
        self.tokens, self.seconds = tokens, seconds


class Machines(Protocol):
    """The machines of a simulation. cores: of all nodes; a command takes one. train, update: seconds of one training
    step, and of bringing its weights to the engines."""

    @property
    def cores(self) -> float: ...

    @property
    def train(self) -> float: ...

    @property
    def update(self) -> float: ...

    def token_seconds(self, calls: int) -> float:
        """Return the seconds of one token of a call, with so many calls in flight on all engines."""
        ...


@dataclass(frozen=True)
class Cluster:
    """The nodes of the benchmark. All of it is assumed; none was measured.

    speed: tokens a second of one request. knee: requests a node serves at that speed; with more, all of them together
    are as fast as these. cpus: of a node.
    """

    nodes: int
    speed: float = 60.0
    knee: int = 64
    cpus: int = 96
    train: float = 180.0
    update: float = 10.0

    @property
    def cores(self) -> int:
        return self.nodes * self.cpus

    def token_seconds(self, calls: int) -> float:
        return max(1.0, calls / (self.knee * self.nodes)) / self.speed


class Shared:
    """Work that goes on at once, all of it equally fast. speed: units of work a second of each, by how many there are.

    `progress` is what anything that was there from the start would have done by now, so the next to end is the one that
    has the least to go to: `due` is when it does.
    """

    def __init__(self, speed: Callable[[int], float]) -> None:
        self.due = math.inf
        self._speed = speed
        self._rate = 0.0  # the speed of each that runs now
        self._progress = self._since = 0.0
        self._ends: list[tuple[float, int]] = []  # a heap: progress at its end, number
        self._running: dict[int, tuple[asyncio.Future[float], float]] = {}  # by number; with its progress at its end
        self._numbers = count()
        self._loop: SimulatedLoop | None = None
        self._paused = False

    async def run(self, work: float) -> float:
        """Do some work, and return what is left of it: nothing, unless it was aborted."""
        self._advance()
        number, end = next(self._numbers), self._progress + work
        ended: asyncio.Future[float] = self._clock().create_future()
        self._running[number] = ended, end
        heapq.heappush(self._ends, (end, number))
        self._look_ahead()
        try:
            return await ended
        finally:
            if number in self._running:  # cancelled
                self._advance()
                self._end(number)
                self._look_ahead()

    def abort(self) -> None:
        self._advance()
        for number in [*self._running]:
            self._end(number)
        self._look_ahead()

    def pause(self) -> None:
        self._advance()
        self._paused = True
        self._look_ahead()

    def resume(self) -> None:
        self._advance()
        self._paused = False
        self._look_ahead()

    def occurs(self) -> None:
        self._advance()
        self._progress, number = heapq.heappop(self._ends)  # as rounding has it or not
        self._end(number)
        self._look_ahead()

    def _clock(self) -> SimulatedLoop:
        if self._loop is None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop), loop
            loop.watch(self)
            self._loop = loop
        return self._loop

    def _end(self, number: int) -> None:
        ended, end = self._running.pop(number)
        if not ended.done():
            ended.set_result(max(end - self._progress, 0.0))

    def _advance(self) -> None:
        now = self._clock().time()
        if self._running and not self._paused:
            self._progress += (now - self._since) * self._rate
        self._since = now

    def _look_ahead(self) -> None:
        """Set `due` anew. Call it after `_advance`, when the progress or what runs has changed."""
        while self._ends and self._ends[0][1] not in self._running:
            heapq.heappop(self._ends)
        if not self._ends or self._paused:
            self.due = math.inf
            return
        self._rate = self._speed(len(self._running))
        self.due = self._since + max((self._ends[0][0] - self._progress) / self._rate, 0.0)


# A simulated clock.
#
# `SimulatedLoop` is an asyncio event loop that never waits: where nothing is ready, it sets its clock to the next
# timer. So coroutines run as they are, SLiME's own among them, and an hour of them takes as long as their Python code
# does. What changes its next event with almost every event, as `machines.Shared`, is an `Occurrence` in place of a
# timer.
T = TypeVar("T")


class Occurrence(Protocol):
    """An event. due: when it `occurs`, which sets it anew; infinity where it does not."""

    due: float

    def occurs(self) -> None: ...


class _NoWait(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting. It watches no file: nothing outside the loop may wake it."""

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


@dataclass
class Stopwatch:
    """Seconds since the simulation began, less those in which it was stopped."""

    _passed: float = 0.0
    _since: float | None = field(default=0.0)

    def __call__(self) -> float:
        return self._passed + (0.0 if self._since is None else asyncio.get_running_loop().time() - self._since)

    def stop(self) -> None:
        self._passed, self._since = self(), None

    def start(self) -> None:
        self._since = asyncio.get_running_loop().time()


class Engine:
    """The serving engines of all nodes."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._calls = Shared(lambda calls: 1 / machines.token_seconds(calls))
        self._serving = Stopwatch()
        self._open = asyncio.Event()
        self._open.set()

    async def sample(self, tokens: float) -> float:
        """Sample so many tokens, and return the seconds that it took, less weight updates. Raises `Aborted`."""
        while not self._open.is_set():
            await self._open.wait()
        begun = self._serving()
        left = await self._calls.run(tokens)
        seconds = self._serving() - begun
        if left:
            raise Aborted(left, seconds)
        return seconds

    def abort(self) -> None:
        self._calls.abort()

    async def drop(self) -> None:
        """Do as `abort` does, for a caller that awaits the answer of a request to abort."""
        self.abort()

    async def update_weights(self) -> None:
        """Update the weights. Calls in flight stop, and go on after it where they were; none begins meanwhile."""
        self._open.clear()
        self._calls.pause()
        self._serving.stop()
        await asyncio.sleep(self._machines.update)
        self._calls.resume()
        self._serving.start()
        self._open.set()


class Processors:
    """The cores that commands share. asked, taken: seconds that they would take alone, and that they took."""

    def __init__(self, cores: float) -> None:
        self._commands = Shared(lambda commands: min(1.0, cores / commands))
        self.asked = self.taken = 0.0

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._commands.run(seconds)
        self.asked += seconds
        self.taken += loop.time() - begun
