"""What a recipe expects of its untrained policy, and the share of groups that then pass the filter. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from slime_swe.recipes.fields import Part

CERTAINTY = 0.5  # the two parameters of the Beta distribution of tasks' solve rates add up to this
WIDER, NARROWER = CERTAINTY / 2, 2 * CERTAINTY  # tasks that differ more in this, and less


@dataclass(frozen=True)
class Forecast:
    """What the episodes of the untrained policy are expected to be like, until a first run measures it.

    The planner counts with it. A run takes two bounds of its sampling from it: how many episodes it begins with
    (`context`), and the cap that `rollout.max_over_sampling=0` stands for (`solved`).

    solved: share of the training episodes that solve their task; by default that of Qwen3-30B-A3B-Instruct on SWE-bench
        Verified (22.2 %, by uni-agent's README).
    context: an episode's length at its end, as a share of `rollout.max_context`, on average.
    sampled: tokens that the policy sampled, as a share of that length.
    turns: model calls, as a share of `rollout.max_turns`, on average.
    """

    solved: Annotated[float, Meta(gt=0, lt=1)] = 0.22
    context: Part = 0.5
    sampled: Part = 0.3
    turns: Part = 0.5


class Informative(NamedTuple):
    """Shares of groups that pass the filter: that which is expected, and bounds of it."""

    low: float
    expected: float
    high: float


def informative_share(solved: float, certainty: float, size: int) -> float:
    """Of groups of `size` episodes whose episodes neither all solve their task nor all fail. Tasks' solve rates are
    Beta-distributed about `solved`, with two parameters whose sum is `certainty`."""
    all_alike = (
        math.prod((certainty * rate + number) / (certainty + number) for number in range(size))
        for rate in (solved, 1 - solved)
    )
    return 1 - sum(all_alike)


def informative_of(solved: float, size: int) -> Informative:
    """The share that is expected of a solve rate, and that of tasks whose rates have a sum of parameters half and twice
    as large. How much tasks differ is published as pass@k: a sum of 0.59 has DeepSWE's 42.2 % at one attempt and 71.0 %
    at 16 (together.ai/blog/deepswe)."""
    return Informative(*(informative_share(solved, each, size) for each in (WIDER, CERTAINTY, NARROWER)))
