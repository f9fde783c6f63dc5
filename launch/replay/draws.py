"""Fewer episodes of each group: drawn anew several times from those that were recorded, and averaged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slime_swe.launch.replay.recorded import Groups, Recorded

COVERED = 0.95  # of the draws lie between the two ends of an interval


def draws(recorded: Recorded, size: int, count: int) -> Iterator[Groups]:
    """`count` times a rollout's groups with `size` of their episodes each, without replacement, in recorded order.

    The same for one rollout and group however often it is asked for; those of a group are independent of each other.
    """
    for number in range(count):
        yield {group: _drawn(episodes, size, f"{recorded.rollout}/{group}/{number}")
               for group, episodes in recorded.groups.items()}  # fmt: skip


def _drawn(episodes: Sequence[list[int]], size: int, seed: str) -> list[list[int]]:
    chosen = random.Random(seed).sample(range(len(episodes)), min(size, len(episodes)))
    return [episodes[place] for place in sorted(chosen)]


def averaged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over the draws that have one; a count that a draw does not name is 0 there."""
    return _combined(documents, lambda values: math.fsum(values) / len(values))


def intervals(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In place of each figure, between which values 95 % of the draws lie."""
    ends = ((1 - COVERED) / 2, (1 + COVERED) / 2)
    return _combined(documents, lambda values: [_quantile(sorted(values), share) for share in ends])


def _combined(documents: Sequence[Mapping[str, Any]], combine: Callable[[list[float]], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for document in documents for name in document):
        values = [document.get(name, 0) for document in documents]
        if any(isinstance(value, Mapping) for value in values):
            found[name] = _combined([value or {} for value in values], combine)
        else:
            numbers = [value for value in values if value is not None]
            found[name] = combine(numbers) if numbers else None
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two values beside it."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
