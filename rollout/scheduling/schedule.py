"""`Schedule`: what a run does with its episodes while it trains, and when a batch is full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """overlaps: samples while it trains, so that other GPUs must serve than those that train.

    carries: groups that are not finished when a batch is full go on under the next weights; without it they are given
    back, and sampled anew.
    """

    overlaps: bool = False
    carries: bool = False

    @property
    def pauses(self) -> bool:
        """Whether episodes that are carried wait while weights are trained."""
        return self.carries and not self.overlaps

    @property
    def never_stops(self) -> bool:
        """Whether episodes run, and begin, whatever else the run does."""
        return self.carries and self.overlaps


SYNC = "sync"
SCHEDULES: Mapping[str, Schedule] = {
    SYNC: Schedule(),
    "carry": Schedule(carries=True),
    "async": Schedule(overlaps=True),
    "continuous": Schedule(overlaps=True, carries=True),
}
