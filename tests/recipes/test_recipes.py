"""Every shipped recipe builds and can run; every rule for a single field says what is allowed."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.launch.engines import require_legal, violations
from slime_swe.recipes.base import RECORDED_GENERATE, RECORDED_SOURCE
from slime_swe.recipes.checks import allowed, field_types
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rewards.grade import HARNESSES, MODES
from slime_swe.rollout.episode import TRUNCATED
from slime_swe.rollout.grammar import KINDS
from slime_swe.rollout.scheduling.admission import LEAST_SHARE
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.rollout.warm_start import RecordedEpisodes, generate
from tests.recipes.changes import changed, variant


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_is_valid_and_named_as_registered(name):
    recipe = load_recipe(name)
    require_legal(recipe)
    assert recipe.name == name
    assert recipe.description and recipe.hardware


def test_every_number_and_every_choice_has_a_constraint():
    """What is left without one: text and lists that may be anything, and names that are looked up."""
    free = {key for key, hint in field_types().items() if not allowed(hint) and hint is not bool}
    assert free == {
        "name", "description", "hardware", "serving.router_ip", "rollout.system_prompt", "reward.harness_python",
        "data.eval", "data.filters", "data.registry", "data.allow_overlap", "slime.flags", "warm_start.data",
        "engine", "model.tool_format", "model.chat_template", "model.family", "model.config",
        "rollout.grammar", "reward.weights", "run.keep_best",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("rollout.schedule", SCHEDULES),
        ("rollout.mask_truncated", TRUNCATED),
        ("rollout.grammar_kind", KINDS),
        ("reward.mode", MODES),
        ("reward.harness", HARNESSES),
    ],
)
def test_a_name_is_allowed_where_the_plug_in_has_it(key, names):
    assert re.findall(r"\w+", allowed(field_types()[key]).partition(" of ")[2]) == [*names]


def test_the_hooks_of_a_warm_start_are_there():
    assert (load_object(RECORDED_SOURCE, ""), load_object(RECORDED_GENERATE, "")) == (RecordedEpisodes, generate)


def test_a_value_of_another_type_is_refused():
    with pytest.raises(UserError, match=r"rollout\.max_turns='6' is not allowed: Expected `int`, got `str`"):
        require_legal(variant("tiny_cpu", rollout__max_turns="6"))
    with pytest.raises(UserError, match=r"algorithm\.kl_unbiased=1 is not allowed: Expected `bool`, got `int`"):
        require_legal(variant("tiny_cpu", algorithm__kl_unbiased=1))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.tool_format", "xml", "hermes, qwen25_coder, qwen3_coder"),
        ("model.family", "mixtral", "qwen2, qwen3, qwen3_moe"),
        ("cluster.gpu", "V100", "A100-40GB, A100-80GB, H100-80GB, H200-141GB, H800-80GB, H20-96GB, B200-180GB"),
        ("cluster.ray_address", "localhost", "http://host:port"),
        ("parallel.recompute", "half", "none, selective, full"),
        ("parallel.tp", 0, "at least 1"),
        ("serving.mem_fraction", 1.0, "less than 1"),
        ("serving.external_engines", ["here"], "host:port"),
        ("rollout.batch_size", 0, "at least 1"),
        ("rollout.temperature", 0.0, "more than 0"),
        ("rollout.schedule", "later", "sync, carry, async, continuous"),
        ("rollout.top_p", 0.9, "it must be 1: a trained token's log-probability"),
        ("rollout.top_k", 5, "it must be -1: a trained token's log-probability"),
        ("rollout.generate", "module:function", "dotted path"),
        ("algorithm.group_filter", "module:function", "dotted path"),
        ("algorithm.estimator", "ppo", "grpo, gspo, cispo"),
        ("algorithm.reduction", "mean", "trajectory, token, constant"),
        ("algorithm.kl_in", "advantage", "loss, reward"),
        ("algorithm.routing_replay", "r3", "none, train, rollout"),
        ("reward.mode", "shaped", "plus_minus"),
        ("data.train", [], "at least one task set"),
        ("algorithm.clip_low", 1.1, "at most 1"),
        ("optimizer.beta1", 1.0, "less than 1"),
        ("optimizer.beta2", 1.0, "less than 1"),
        ("optimizer.lr", -1.0, "more than 0"),
        ("run.name", "../escape", "folder name"),
        ("run.name", "..", "folder name"),
        ("run.save_interval", 0, "at least 1"),
        ("run.keep_checkpoints", -1, "at least 0"),
        ("run.save_every_minutes", -1.0, "at least 0"),
        ("data.eval", {"train": "synthetic:unseen"}, "names a set as reports and exports name the training episodes"),
        ("run.keep_best", "verified", "is no set of data.eval: use heldout or unseen"),
        ("run.keep_best", "heldout", "run.eval_interval=0 evaluates no checkpoint but the last"),
        ("rollout.max_response", 640, "max_context"),
        ("rollout.max_context", 4096, "made for"),
        ("parallel.max_tokens_per_gpu", 100, "raise max_tokens_per_gpu to 640"),
        ("rollout.max_over_sampling", 0.5, "at least 1"),
        ("algorithm.steps_per_rollout", 7, "does not divide"),
        ("algorithm.mismatch", "tis", "none, truncate, icepop, mis"),
        ("algorithm.mismatch_low", 1.5, "at most 1"),
        ("algorithm.mismatch_high", 0.5, "at least 1"),
        ("model.config.num_hidden_layer", 3, "did you mean model.config.num_hidden_layers"),
        ("model.config.num_experts", 8, "not a part of the shape that is read"),
    ],
)
def test_a_broken_rule_names_the_key_and_what_is_allowed(key, value, said):
    with pytest.raises(UserError) as error:
        require_legal(changed(load_recipe("tiny_cpu"), key, value))
    assert key in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model_type", "mixtral", "'mixtral' is of no family here, which read qwen2, qwen3, qwen3_moe"),
        ("model_type", "qwen3_moe", "norm_topk_prob is missing"),
        ("num_key_value_heads", 3, "num_key_value_heads=3 does not divide num_attention_heads=4"),
        ("num_key_value_heads", 0, "num_key_value_heads=0 is not allowed: it must be a whole number of at least 1"),
        ("num_hidden_layers", "deep", "num_hidden_layers='deep' is not allowed: it must be a whole number"),
        ("num_hidden_layers", True, "num_hidden_layers=True is not allowed: it must be a whole number"),
        ("tie_word_embeddings", 1, "tie_word_embeddings=1 is not allowed: it must be true or false"),
        ("rope_theta", -1, "rope_theta=-1 is not allowed: it must be a number above 0"),
        ("hidden_size", None, "hidden_size is missing"),
        ("use_sliding_window", True, "use_sliding_window is True, and only False can be trained"),
    ],
)
def test_a_shape_that_can_t_be_trained_is_refused(key, value, said):
    with pytest.raises(UserError, match=r"^model\.config: ") as error:
        require_legal(changed(load_recipe("tiny_cpu"), f"model.config.{key}", value))
    assert said in str(error.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(UserError) as error:
        require_legal(variant("tiny_cpu", rollout__batch_size=0, optimizer__lr=-1.0))
    assert str(error.value).splitlines() == [
        "2 things of this recipe are not allowed:",
        "- rollout.batch_size=0 is not allowed: it must be at least 1",
        "- optimizer.lr=-1.0 is not allowed: it must be more than 0",
    ]


def test_the_best_checkpoint_is_of_a_rollout_that_is_saved_and_evaluated():
    assert not violations(variant("qwen25_coder_7b", run__keep_best="verified"))
    (found,) = violations(variant("qwen25_coder_7b", run__keep_best="verified", run__save_interval=3))
    assert str(found.message).startswith("run.eval_interval=20 leaves rollouts evaluated that no checkpoint is of")
    assert found.fix == "use a multiple of 3, or leave run.keep_best empty"


def test_a_cap_of_sampling_that_makes_each_batch_wait_twice_is_refused():
    """At 3 % solved episodes 5 % of the groups are expected to pass: 4 times as many are too few."""
    (found,) = violations(variant("qwen25_coder_7b", rollout__max_over_sampling=4.0))
    assert "5% of the groups are expected to pass the filter (forecast.solved=0.03)" in found.message
    assert found.fix == "use at least 21, or 0 for twice one over that share"
    assert not violations(variant("qwen25_coder_7b", rollout__max_over_sampling=21.0))
    assert not violations(variant("qwen3_5_9b", rollout__max_over_sampling=1.0)), "nobody reads it there"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_samples_more_than_one_over_the_share_that_passes(name):
    recipe = load_recipe(name)
    assert recipe.max_over_sampling * recipe.informative.low > 1 or recipe.informative.low == 1


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_longest_episode_is_no_longer_than_twice_its_forecast(name):
    """Half of the episodes that the caches hold by the forecast fit whatever their length."""
    assert load_recipe(name).forecast.context >= LEAST_SHARE


def test_rules_that_need_a_valid_field_are_not_asked_before_it_is():
    found = violations(variant("qwen25_coder_7b", parallel__tp=0, model__config__num_hidden_layers=27))
    assert [violation.field for violation in found] == ["parallel.tp"]


def test_unknown_recipe_names_the_nearest_and_what_there_is():
    with pytest.raises(UserError, match=r"no recipe 'tiny_gpu': did you mean tiny_cpu\? Available: tiny_cpu, qwen25"):
        load_recipe("tiny_gpu")


@pytest.mark.parametrize("name", ["no.such.module", "tiny cpu", "", ".", "recipes."])
def test_what_is_no_module_is_an_unknown_recipe(name):
    with pytest.raises(UserError, match="there is no recipe"):
        load_recipe(name)


def test_a_module_without_a_recipe_says_what_it_lacks():
    with pytest.raises(UserError, match=r"has no function recipe\(\)"):
        load_recipe("slime_swe.recipes.base")


def test_any_module_on_the_path_is_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "my_recipe.py").write_text(
        "import dataclasses\nfrom recipes import tiny_cpu\n"
        "def recipe():\n    return dataclasses.replace(tiny_cpu.recipe(), name='mine')\n"
    )
    (tmp_path / "bad_recipe.py").write_text("def recipe():\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_recipe("my_recipe").name == "mine"
    with pytest.raises(UserError, match="not dict"):
        load_recipe("bad_recipe")


@pytest.mark.parametrize("name", [name for name in RECIPES if load_recipe(name).engine == "slime"])
@pytest.mark.parametrize("part", ["Tool calls: ", "Expect: "])
def test_a_recipe_says_how_its_model_calls_tools_and_what_to_expect(name, part):
    """Of the untrained model, or which recipe says so."""
    assert f"\n{part}" in (import_module(f"slime_swe.recipes.{name}").__doc__ or "")
