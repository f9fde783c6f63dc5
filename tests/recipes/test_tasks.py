"""`task=NAME`: a recipe for another kind of tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.tasks import TASKS

MINE = f"task={__name__}.shortened"


def shortened(recipe: Recipe) -> Recipe:
    return replace(recipe, rollout=replace(recipe.rollout, max_turns=3, max_response=99))


def broken(recipe: Recipe) -> str:
    return recipe.name


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("recipe", ["tiny_cpu", "qwen25_coder_7b"])
def test_every_kind_makes_a_recipe_that_can_run(recipe, name):
    changed, own = resolve(recipe, [f"task={name}"]), resolve(recipe)
    algorithm = replace(changed.algorithm, group_filter=own.algorithm.group_filter)
    assert changed.data.train and (changed.model, algorithm) == (own.model, own.algorithm)


def test_an_own_kind_is_a_dotted_path_and_what_is_given_beside_it_counts_more():
    rollout = resolve("tiny_cpu", ["rollout.max_turns=5", MINE]).rollout
    assert (rollout.max_turns, rollout.max_response) == (5, 99)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("task=synthetics", "Did you mean 'synthetic'"),
        ("task=", "task= is given without a name"),
        (f"task={__name__}.broken", "must return a slime_swe.recipes.base.Recipe, not str"),
    ],
)
def test_a_kind_that_is_none_is_refused(task, said):
    with pytest.raises(UserError, match=said):
        resolve("tiny_cpu", [task])
