"""Every shipped recipe builds and can run; every rule for a single field says what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from launch.keys import flatten
from recipes.base import RecipeError
from recipes.checks import violations
from recipes.registry import RECIPES, load_recipe
from recipes.rules.values import RULES, lookup
from tests.recipes.changes import changed, variant

FREE = {  # any value will do
    "name", "description", "hardware",  # words
    "model.architecture.tied", "model.architecture.qkv_bias", "model.architecture.qk_norm",  # decided by the family
    "cluster.colocate", "serving.router_ip", "serving.deterministic", "serving.dp_attention",
    "rollout.system_prompt", "rollout.partial", "data.eval", "data.allow_overlap", "data.shuffle",
    "algorithm.kl_unbiased", "algorithm.tis", "algorithm.rollout_logprobs", "algorithm.normalize_rewards",
    "algorithm.std_normalization", "optimizer.cpu_offload", "run.wandb_project", "run.tensorboard",
    "reward.harness_python",
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_is_valid_and_named_as_registered(name):
    recipe = load_recipe(name)
    recipe.validate()
    assert recipe.name == name
    assert recipe.description and recipe.hardware


def test_each_field_has_a_rule_of_its_own_or_needs_none():
    keys = {key for key, _ in flatten(dataclasses.asdict(load_recipe("tiny_cpu")))}
    ruled = {key for key, _, _ in RULES}
    assert keys - ruled == FREE
    assert ruled <= keys


def test_every_rule_names_a_field():
    recipe = load_recipe("tiny_cpu")
    for key, _, allowed in RULES:
        lookup(recipe, key)
        assert allowed


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engine", "verl", "embedded, slime, slime_cpu"),
        ("model.tool_format", "xml", "hermes, qwen3_coder"),
        ("model.architecture.family", "llama", "qwen2, qwen3, qwen3_moe"),
        ("model.architecture.kv_heads", 0, "at least 1"),
        ("cluster.gpu", "V100", "A100-40GB, A100-80GB, H100-80GB, H200-141GB"),
        ("cluster.ray_address", "localhost", "http://host:port"),
        ("parallel.recompute", "half", "none, selective, full"),
        ("parallel.tp", 0, "at least 1"),
        ("serving.mem_fraction", 1.0, "less than 1"),
        ("serving.external_engines", ["here"], "host:port"),
        ("rollout.batch_size", 0, "at least 1"),
        ("rollout.temperature", 0.0, "more than 0"),
        ("rollout.schedule", "later", "sync, async, fully_async"),
        ("rollout.top_p", 0.9, "it must be 1: a trained token's log-probability"),
        ("rollout.top_k", 5, "it must be -1: a trained token's log-probability"),
        ("rollout.generate", "module:function", "dotted path"),
        ("algorithm.group_filter", "module:function", "dotted path"),
        ("algorithm.estimator", "ppo", "grpo, gspo"),
        ("algorithm.reduction", "mean", "trajectory, token, constant"),
        ("algorithm.kl_in", "advantage", "loss, reward"),
        ("algorithm.routing_replay", "r3", "none, train, rollout"),
        ("reward.mode", "shaped", "plus_minus"),
        ("data.train", [], "at least one task set"),
        ("algorithm.clip_low", 1.0, "less than 1"),
        ("optimizer.beta1", 1.0, "less than 1"),
        ("optimizer.beta2", 1.0, "less than 1"),
        ("optimizer.lr", -1.0, "more than 0"),
        ("run.name", "../escape", "folder name"),
        ("run.name", "..", "folder name"),
        ("run.save_interval", 0, "at least 1"),
        ("rollout.max_response", 640, "max_context"),
        ("rollout.max_context", 4096, "made for"),
        ("parallel.max_tokens_per_gpu", 100, "raise max_tokens_per_gpu to 640"),
        ("rollout.over_sampling", 3, "set it to 0"),
        ("algorithm.steps_per_rollout", 7, "does not divide"),
        ("algorithm.tis_clip_low", 3.0, "algorithm.tis_clip=2"),
        ("model.architecture.kv_heads", 3, "does not divide heads=4"),
        ("model.architecture.qk_norm", True, "qwen2 models don't have"),
        ("model.architecture.experts", 8, "no experts"),
    ],
)
def test_a_broken_rule_names_the_key_and_what_is_allowed(key, value, said):
    with pytest.raises(RecipeError) as error:
        changed(load_recipe("tiny_cpu"), key, value).validate()
    assert key in str(error.value)
    assert said in str(error.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(RecipeError) as error:
        variant("tiny_cpu", rollout__batch_size=0, optimizer__lr=-1.0).validate()
    assert str(error.value).splitlines() == [
        "2 things of this recipe are not allowed:",
        "- rollout.batch_size=0 is not allowed: it must be at least 1",
        "- optimizer.lr=-1.0 is not allowed: it must be more than 0",
    ]


def test_rules_that_need_a_valid_field_are_not_asked_before_it_is():
    found = violations(variant("qwen25_coder_7b", parallel__tp=0, model__architecture__layers=27))
    assert [violation.field for violation in found] == ["parallel.tp"]


def test_unknown_recipe_names_the_nearest_and_what_there_is():
    with pytest.raises(RecipeError, match=r"no recipe 'tiny_gpu': did you mean tiny_cpu\? Available: tiny_cpu, qwen25"):
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
