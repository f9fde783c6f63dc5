"""List the recipes, or show one with the overrides applied.

slime-swe recipes
slime-swe recipes recipe=tiny_cpu rollout.max_turns=6
"""

from __future__ import annotations

import argparse
import dataclasses

from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, dump_recipe, resolve
from slime_swe.launch.output import print_json
from slime_swe.recipes.registry import RECIPES, load_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.overrides:
        recipe = resolve(DEFAULT_RECIPE, options.overrides)
        if options.json:
            print_json(dataclasses.asdict(recipe))
        else:
            print(dump_recipe(recipe), end="")
        return 0
    recipes = [load_recipe(name) for name in RECIPES]
    if options.json:
        print_json([{key: getattr(recipe, key) for key in ("name", "hardware", "description")} for recipe in recipes])
        return 0
    width = max(len(recipe.name) for recipe in recipes)
    for recipe in recipes:
        print(f"{recipe.name:{width}}  {recipe.hardware}: {recipe.description}")
    return 0
