"""Functions whose bodies are removed, to be written from their comment and their tests: of the generated repositories,
which every sandbox takes. `data.train=['specification:PACKAGE']` takes a package that is installed."""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe


def adapted(recipe: Recipe) -> Recipe:
    sets = {"heldout": "specification:synthetic_heldout", "unseen": "specification:synthetic_unseen"}
    train = ["specification:synthetic"]
    return replace(recipe, data=replace(recipe.data, train=train, weights=[], filters={}, eval=sets))
