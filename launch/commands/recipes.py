"""List the recipes, or show one with the overrides applied.

slime-swe recipes
slime-swe recipes recipe=tiny_cpu rollout.max_turns=6
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from slime_swe.launch.config import dump_recipe, resolve
from slime_swe.launch.output import print_json
from slime_swe.launch.overrides import DEFAULT_RECIPE, add_recipe_arguments, split_recipe
from slime_swe.recipes.registry import RECIPES, load_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> int:
    name, overrides = split_recipe(options.overrides)
    if name is not None or overrides:
        return _show(name or DEFAULT_RECIPE, overrides, options.json)
    listed = [_describe(name) for name in RECIPES]
    if options.json:
        print_json(listed)
        return 0
    width = max(len(recipe["name"]) for recipe in listed)
    for recipe in listed:
        print(f"{recipe['name']:{width}}  {recipe['hardware']}: {recipe['description']}")
    return 0


def _describe(name: str) -> dict[str, Any]:
    recipe = load_recipe(name)
    return {"name": recipe.name, "hardware": recipe.hardware, "description": recipe.description}


def _show(name: str, overrides: list[str], as_json: bool) -> int:
    recipe = resolve(name, overrides)
    if as_json:
        print_json(dataclasses.asdict(recipe))
    else:
        print(dump_recipe(recipe), end="")
    return 0
