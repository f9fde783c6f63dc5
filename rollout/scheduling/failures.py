"""`Failures`: which tasks are set aside because infrastructure fails on them, and when nothing is begun any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Failures:
    """Counts the episodes that infrastructure broke.

    A task is set aside after `most_of_a_task` broken groups without a sound one between. That is a fault of the task:
    an image that can't be pulled, a repository that can't be set up. If instead `most_in_a_row` episodes of any
    tasks break one after the other, it is an *outage*: nothing is begun but one group at a time, until one episode is
    sound, and no task is blamed. After `hopeless_after` such episodes nothing will come of it.
    """

    most_of_a_task: int = 3
    most_in_a_row: int = 32
    hopeless_after: int = 128
    set_aside: set[str] = field(default_factory=set)
    _of_task: Counter[str] = field(default_factory=Counter)
    _in_a_row: int = 0

    @property
    def outage(self) -> bool:
        return self._in_a_row >= self.most_in_a_row

    @property
    def hopeless(self) -> bool:
        return self._in_a_row >= self.hopeless_after

    def episode(self, *, broken: bool) -> None:
        """An episode has ended."""
        self._in_a_row = self._in_a_row + 1 if broken else 0

    def group(self, task: str, *, broken: bool) -> bool:
        """A group of a task has ended; whether it is to be tried again."""
        if not broken:
            del self._of_task[task]
            return False
        if not self.outage:
            self._of_task[task] += 1
        if self._of_task[task] >= self.most_of_a_task:
            self.set_aside.add(task)
        return task not in self.set_aside
