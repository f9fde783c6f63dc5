"""What makes a recipe runnable: rules for single fields, for fields that belong together, and for its engine."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from recipes import parallelism
from recipes.rules import engines, objective, placement, together
from recipes.rules.values import RULES, broken
from recipes.violation import Violation, refuse

if TYPE_CHECKING:
    from recipes.base import Recipe

_SLIME_WITHOUT_GPUS = (*objective.RULES, placement.fully_async, placement.partial)


def check(recipe: Recipe) -> None:
    """Raise `RecipeError` with every rule that the recipe breaks."""
    refuse(violations(recipe))


def violations(recipe: Recipe) -> list[Violation]:
    """Every rule that the recipe breaks; where single fields are wrong already, only these."""
    return broken(recipe, RULES) or [*chain.from_iterable(rule(recipe) for rule in together.RULES), *_of_engine(recipe)]


def _of_engine(recipe: Recipe) -> list[Violation]:
    if recipe.engine == "slime":
        return parallelism.violations(recipe)
    if recipe.engine == "embedded":
        return broken(recipe, engines.EMBEDDED)
    return [
        *broken(recipe, engines.SLIME_CPU),
        *chain.from_iterable(rule(recipe) for rule in _SLIME_WITHOUT_GPUS),
    ]
