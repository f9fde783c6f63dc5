"""`Scheduler`, and what it knows of a group."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Outcome(enum.Enum):
    """What a group has come to, once all of its episodes have ended."""

    INFORMATIVE = "informative"  # its episodes differ, so that there is something to learn
    UNIFORM = "uniform"  # they do not
    BROKEN = "broken"  # infrastructure left too few of them; if it is tried again, it begins anew


@dataclass(frozen=True)
class Batch:
    """The groups of one training step, in the order in which they began. given_back: what is to be sampled anew.
    begun: the versions under which the groups began."""

    groups: Sequence[int]
    begun: Sequence[int]
    given_back: Sequence[int] = ()


class Scheduler(Protocol):
    """Groups have numbers, which increase in the order in which they begin for the first time.

    A version is the number of training steps that the weights have seen. Each group is trained once, dropped once or
    given back; which of them does not depend on how long its episodes take.
    """

    def wanted(self, version: int) -> int:
        """How many more groups to begin now, for batches that are trained on this version and later ones."""
        ...

    def begin(self, group: int, version: int) -> None:
        """A group has begun, or begun anew: because it ended broken, or because it was given back.

        The version is that of `wanted`.
        """
        ...

    def end(self, group: int, outcome: Outcome) -> None:
        """A group has come to its end. One that is not informative is dropped."""
        ...

    def take(self, version: int) -> Batch | None:
        """The batch that is trained on weights of this version, once it is complete."""
        ...
