"""The limits that a solve rate is stated with: more turns and more context solve more tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.config import read_recipe
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe

Limits = Mapping[str, int]  # as `rollout.evaluation.limits` has them


def limits_of(recipe: Recipe) -> dict[str, int]:
    return {"max_turns": recipe.rollout.max_turns, "max_context": recipe.rollout.max_context}


def limits_in(folder: Path) -> dict[str, int] | None:
    """Those of a run or an evaluation; None where its recipe can't be read, as of another version."""
    try:
        return limits_of(read_recipe(folder / RECIPE_FILE))
    except UserError:
        return None


def in_words(limits: Limits) -> str:
    return f"at most {limits['max_turns']} turns, {limits['max_context']:,} tokens of context"
