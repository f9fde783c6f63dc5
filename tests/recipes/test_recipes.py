"""Every shipped recipe builds, validates and survives a round trip; every rule says what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from recipes.base import Recipe, RecipeError
from recipes.registry import RECIPES, load_recipe
from recipes.rules.values import RULES, lookup


def changed(recipe: Recipe, key: str, value: object) -> Recipe:
    section, name = key.split(".")
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **{name: value})})


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_is_valid_and_named_as_registered(name):
    recipe = load_recipe(name)
    recipe.validate()
    assert recipe.name == name
    assert recipe.description and recipe.hardware


def test_every_rule_names_a_field():
    recipe = load_recipe("tiny_cpu")
    for key, _, allowed in RULES:
        lookup(recipe, key)
        assert allowed


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.tool_format", "xml", "hermes, qwen3_coder"),
        ("rollout.batch_size", 0, "at least 1"),
        ("rollout.temperature", 0.0, "more than 0"),
        ("rollout.top_p", 0.9, "it must be 1: a trained token's log-probability"),
        ("rollout.top_k", 5, "it must be -1: a trained token's log-probability"),
        ("rollout.generate", "module:function", "dotted path"),
        ("reward.mode", "shaped", "plus_minus"),
        ("data.train", [], "at least one task set"),
        ("algorithm.clip_low", 1.0, "less than 1"),
        ("optimizer.beta1", 1.0, "less than 1"),
        ("optimizer.beta2", 1.0, "less than 1"),
        ("optimizer.lr", -1.0, "more than 0"),
        ("run.name", "../escape", "folder name"),
        ("run.name", "..", "folder name"),
        ("rollout.max_response", 640, "max_context"),
        ("parallel.max_tokens_per_gpu", 100, "raise"),
        ("rollout.over_sampling", 3, "set it to 0"),
        ("algorithm.steps_per_rollout", 7, "does not divide"),
        ("parallel.tp", 2, "it must be 1: this engine trains in one process"),
        ("parallel.etp", 2, "it must be 1: this engine trains in one process"),
        ("cluster.nodes", 2, "it must be 1: this engine trains in one process"),
        ("cluster.gpus_per_node", 8, "it must be 0: this engine asks for no GPUs"),
    ],
)
def test_a_broken_rule_names_the_key_and_what_is_allowed(key, value, said):
    with pytest.raises(RecipeError) as error:
        changed(load_recipe("tiny_cpu"), key, value).validate()
    assert key.split(".")[1] in str(error.value)
    assert said in str(error.value)


def test_unknown_recipe_names_the_nearest_and_what_there_is():
    with pytest.raises(RecipeError, match=r"no recipe 'tiny_gpu': did you mean tiny_cpu\? Available: tiny_cpu"):
        load_recipe("tiny_gpu")


@pytest.mark.parametrize("name", ["no.such.module", "tiny cpu", "", ".", "recipes."])
def test_what_is_no_module_is_an_unknown_recipe(name):
    with pytest.raises(RecipeError, match="there is no recipe"):
        load_recipe(name)


def test_a_module_without_a_recipe_says_what_it_lacks():
    with pytest.raises(RecipeError, match=r"has no function recipe\(\)"):
        load_recipe("recipes.base")


def test_any_module_on_the_path_is_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "my_recipe.py").write_text(
        "import dataclasses\nfrom recipes import tiny_cpu\n"
        "def recipe():\n    return dataclasses.replace(tiny_cpu.recipe(), name='mine')\n"
    )
    (tmp_path / "bad_recipe.py").write_text("def recipe():\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_recipe("my_recipe").name == "mine"
    with pytest.raises(RecipeError, match="not dict"):
        load_recipe("bad_recipe")
