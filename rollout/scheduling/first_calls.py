"""`FirstCalls`: whether the episodes with which a run begins call tools at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ENOUGH = 100  # episodes without a call: of a policy that calls in one of thirty, 97 runs in 100 go on


@dataclass
class FirstCalls:
    """Counts the episodes of the groups that began first, until one episode has called a tool.

    A group counts once all groups that began before it have ended: episodes without a call are over after few turns,
    so that those which end first say little of the others. A call in any that has ended settles it.
    """

    enough: int = ENOUGH
    malformed: int = 0  # calls
    called: bool = False
    _episodes: dict[int, int] = field(default_factory=dict)  # of each group that has ended

    def end(self, group: int, episodes: Sequence[tuple[int, int]]) -> None:
        """A group has ended. episodes: of each in which the policy had a turn and which infrastructure did not break,
        how many calls were well-formed, and how many were malformed."""
        self.called = self.called or any(well_formed for well_formed, _ in episodes)
        self.malformed += sum(malformed for _, malformed in episodes)
        self._episodes[group] = len(episodes)

    def seen(self, running: Iterable[int]) -> int:
        """How many episodes have been without a call from the run's beginning; 0 once there was one. running: groups
        that have begun and not ended."""
        if self.called:
            self._episodes.clear()
            return 0
        first = min(running, default=math.inf)
        return sum(count for group, count in self._episodes.items() if group < first)

    def hopeless(self, running: Iterable[int]) -> bool:
        return self.seen(running) >= self.enough
