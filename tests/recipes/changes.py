"""Recipes with some of their fields changed."""

from __future__ import annotations

import dataclasses
from typing import Any

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.registry import load_recipe


def changed(recipe: Any, key: str, value: object) -> Any:
    """The recipe, or a section of it or a mapping in it, with another value at a dotted key."""
    name, _, rest = key.partition(".")
    if isinstance(recipe, dict):
        return recipe | {name: changed(recipe[name], rest, value) if rest else value}
    inner = changed(getattr(recipe, name), rest, value) if rest else value
    return dataclasses.replace(recipe, **{name: inner})


def variant(name: str, **values: object) -> Recipe:
    """A shipped recipe with changes; `__` stands for the dot of a key."""
    recipe = load_recipe(name)
    for key, value in values.items():
        recipe = changed(recipe, key.replace("__", "."), value)
    return recipe
