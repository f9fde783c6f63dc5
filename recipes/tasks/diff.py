"""The synthetic repositories without their tests: the reward is the likeness to the gold patch, as SWE-RL has it.

What it changes beside the task sets: `reward.mode=fraction`, since the likeness is the reward; and every group is
trained, since hardly any holds both a patch that is the gold patch and one that is not. With `rollout.agent=blocks` the
answer is one reply of search/replace blocks, as SWE-RL has it.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe
from slime_swe.rewards.diff import require_cydifflib


def adapted(recipe: Recipe) -> Recipe:
    """Raises `UserError` where cydifflib is not installed."""
    require_cydifflib()
    sets = {"heldout": "diff:heldout", "unseen": "diff:unseen"}
    return replace(
        recipe,
        data=replace(recipe.data, train=["diff:train"], weights=[], filters={}, eval=sets),
        reward=replace(recipe.reward, mode="fraction"),
        algorithm=replace(recipe.algorithm, group_filter=""),
    )
