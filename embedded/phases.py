"""Where a run's wall time goes: seconds by phase, kept over resumptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from slime_swe.rollout.records import episode_of, trajectories
from slime_swe.sample import Sample

PHASES = ("startup", "evaluation", "generation", "sandbox", "training", "weight_sync", "checkpoint")


class Clock:
    """Adds up wall seconds by phase. Phases don't nest: one ends before the next begins."""

    def __init__(self, on_phase: Callable[[str], None], earlier: Mapping[str, float] | None = None) -> None:
        earlier = earlier or {}
        self.seconds: dict[str, float] = {name: earlier.get(name, 0.0) for name in PHASES}
        self._earlier = earlier.get("total", 0.0)
        self._on_phase = on_phase
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._on_phase(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def total(self) -> float:
        """Wall seconds of this process and of those that the run was resumed from, up to their last checkpoint."""
        return self._earlier + time.perf_counter() - self._started

    def snapshot(self) -> dict[str, float]:
        return self.seconds | {"total": self.total()}

    def divide_rollout(self, wall: float, sandbox_share: float) -> None:
        """Move the sandboxes' part of a rollout's wall time out of `generation`, where it was counted."""
        self.seconds["generation"] -= wall * sandbox_share
        self.seconds["sandbox"] += wall * sandbox_share


def sandbox_share(samples: Sequence[Sample], reward_seconds: float) -> float:
    """The part of the episodes' own time that they waited for sandboxes, grading included, rather than for the engine.

    Episodes run concurrently, so a rollout's wall time has no exact split; this is the share by episode time.
    """
    sandbox, engine = reward_seconds, 0.0
    for segments in trajectories(samples):
        record = episode_of(segments[0])
        if record:
            sandbox += record.timings.sandbox
            engine += record.timings.engine
    return sandbox / (sandbox + engine) if sandbox + engine > 0 else 0.0
