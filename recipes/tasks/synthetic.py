"""Generated repositories with one bug each, which every sandbox takes and nobody has to fetch."""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe


def adapted(recipe: Recipe) -> Recipe:
    sets = {"heldout": "synthetic:heldout", "unseen": "synthetic:unseen"}
    return replace(recipe, data=replace(recipe.data, train=["synthetic:train"], weights=[], filters={}, eval=sets))
