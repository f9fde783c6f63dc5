"""Group-relative advantages over trajectories (GRPO, Shao et al. 2024, arXiv:2402.03300, eq. 4.1.2).

A trajectory counts once in its group's baseline, whatever the number of its training segments.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from slime_swe.errors import UserError

EPSILON = 1e-6  # added to the deviation, as SLiME does (slime/ray/rollout.py, _post_process_rewards)


class AdvantageError(UserError):
    """The rows contradict each other."""


@dataclass(frozen=True)
class Row:
    """One training segment. `excluded`: infrastructure failed, so it is in neither the baseline nor the loss."""

    group: Hashable
    trajectory: Hashable
    reward: float
    excluded: bool = False


def group_advantages(rewards_G: Sequence[float], *, normalize_std: bool) -> list[float]:
    """Return one advantage for each trajectory of one group: its reward minus the group's mean.

    With `normalize_std`, this is divided by the sample standard deviation (n - 1) plus `EPSILON`. A group of one, or
    one whose rewards are all equal, gets zeros.
    """
    if len(set(rewards_G)) < 2:
        return [0.0] * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    centred = [reward - mean for reward in rewards_G]
    if not normalize_std:
        return centred
    deviation = math.sqrt(math.fsum(c * c for c in centred) / (len(centred) - 1))
    return [c / (deviation + EPSILON) for c in centred]


def segment_advantages(rows_B: Sequence[Row], *, normalize_std: bool) -> list[float]:
    """Return one advantage for each row: its trajectory's, or 0.0 where the trajectory is excluded.

    One excluded segment excludes its trajectory. Raises `AdvantageError` where the segments of a trajectory carry
    different rewards.
    """
    groups: dict[Hashable, dict[Hashable, float]] = {}
    out = {(row.group, row.trajectory) for row in rows_B if row.excluded}
    for row in rows_B:
        if (row.group, row.trajectory) in out:
            continue
        reward = groups.setdefault(row.group, {}).setdefault(row.trajectory, row.reward)
        if reward != row.reward:
            raise AdvantageError(
                f"trajectory {row.trajectory!r} of group {row.group!r} has segments with rewards {reward} and "
                f"{row.reward}: give all segments of a trajectory its one reward"
            )
    advantages: dict[tuple[Hashable, Hashable], float] = {}
    for group, rewards in groups.items():
        values = group_advantages(list(rewards.values()), normalize_std=normalize_std)
        advantages |= {(group, name): value for name, value in zip(rewards, values, strict=True)}
    return [advantages.get((row.group, row.trajectory), 0.0) for row in rows_B]
