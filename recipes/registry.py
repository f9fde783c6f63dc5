"""Short name -> module of a recipe. Any importable module with a `recipe()` works without being listed here."""

from __future__ import annotations

import difflib
import importlib
from importlib.util import find_spec

from slime_swe.errors import UserError
from slime_swe.recipes.base import Recipe

RECIPES: dict[str, str] = {
    "tiny_cpu": "slime_swe.recipes.tiny_cpu",
    "qwen25_coder_1_5b": "slime_swe.recipes.qwen25_coder_1_5b",
    "qwen25_coder_7b": "slime_swe.recipes.qwen25_coder_7b",
    "qwen25_coder_32b": "slime_swe.recipes.qwen25_coder_32b",
    "qwen3_coder_30b_a3b": "slime_swe.recipes.qwen3_coder_30b_a3b",
    "qwen3_coder_30b_a3b_128k": "slime_swe.recipes.qwen3_coder_30b_a3b_128k",
    "qwen3_coder_30b_a3b_async": "slime_swe.recipes.qwen3_coder_30b_a3b_async",
    "qwen3_30b_a3b_instruct": "slime_swe.recipes.qwen3_30b_a3b_instruct",
    "qwen3_4b_instruct": "slime_swe.recipes.qwen3_4b_instruct",
    "qwen3_8b": "slime_swe.recipes.qwen3_8b",
    "qwen3_32b": "slime_swe.recipes.qwen3_32b",
    "qwen3_coder_next": "slime_swe.recipes.qwen3_coder_next",
    "qwen3_5_4b": "slime_swe.recipes.qwen3_5_4b",
    "qwen3_5_9b": "slime_swe.recipes.qwen3_5_9b",
    "qwen3_6_35b_a3b": "slime_swe.recipes.qwen3_6_35b_a3b",
    "glm4_7_flash": "slime_swe.recipes.glm4_7_flash",
}


def load_recipe(name: str) -> Recipe:
    """Return the recipe of a short name or of a dotted module path. Raises `UserError` where there is none."""
    module = RECIPES.get(name, name)
    if not _importable(module):
        nearest = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
        raise UserError(
            f"there is no recipe {name!r}: {hint}Available: {', '.join(RECIPES)}. "
            "A dotted module path or the path of a recipe.yaml works too."
        )
    build = getattr(importlib.import_module(module), "recipe", None)
    if not callable(build):
        raise UserError(f"module {module!r} has no function recipe() that returns a slime_swe.recipes.base.Recipe")
    made = build()
    if not isinstance(made, Recipe):
        raise UserError(f"{module}.recipe() must return a slime_swe.recipes.base.Recipe, not {type(made).__name__}")
    return made


def _importable(module: str) -> bool:
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
