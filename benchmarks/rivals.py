"""What the benchmarks that time sandboxes share: laps by name, and figures beside their rivals'."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.baseline import Figures

TOLERANCE = 2.0  # a ratio to the rival this many times the baseline's fails the check


class Laps:
    """Times by name, in seconds."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    async def time(self, name: str, action: Awaitable[Any], count: int = 1) -> Any:
        """Await the action, which does the same `count` times."""
        started = time.perf_counter()
        result = await action
        self._times.setdefault(name, []).append((time.perf_counter() - started) / count)
        return result

    def medians(self) -> dict[str, float]:
        """In milliseconds."""
        return {name: round(statistics.median(values) * 1e3, 3) for name, values in self._times.items()}


@dataclass(frozen=True)
class Rivals:
    """labels: figure → what it is. ratios: figure → the rival's. heading, width: of our column, of the labels."""

    labels: Mapping[str, str]
    ratios: Mapping[str, str]
    heading: str
    width: int

    def table(self, figures: Figures) -> str:
        rows = [f"{'milliseconds, median':{self.width}} {self.heading:>8} {'rival':>8} {'ratio':>7}"]
        for name, label in self.labels.items():
            rival = figures.get(self.ratios.get(name, ""))
            beside = f" {rival:8.2f} {figures[name] / rival:7.3f}" if rival else ""
            rows.append(f"{label:{self.width}} {figures[name]:8.2f}{beside}")
        return "\n".join(rows)

    def slower(self, figures: Figures, baseline: Figures) -> list[str]:
        """The ratios worse than the baseline's by more than `TOLERANCE`: a busy machine slows both sides alike."""
        worse = []
        for name, rival in self.ratios.items():
            ratio, expected = figures[name] / figures[rival], baseline[name] / baseline[rival]
            if ratio > TOLERANCE * expected:
                worse.append(f"{name} is {ratio:.3f} of {rival}; the baseline is {expected:.3f}")
        return worse
