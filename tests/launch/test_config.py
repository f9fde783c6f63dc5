"""Overrides and recipe files: what is accepted, and what is said where they are wrong."""

from __future__ import annotations

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import assemble, read_recipe, resolve, save_recipe
from slime_swe.recipes.registry import RECIPES, load_recipe


def test_overrides_are_typed():
    recipe = resolve(
        "tiny_cpu",
        ["rollout.max_turns=5", "optimizer.lr=1", "data.train=[a,b]", "run.name=123", "serving.deterministic=false"],
    )
    assert recipe.rollout.max_turns == 5
    assert recipe.optimizer.lr == 1.0 and isinstance(recipe.optimizer.lr, float)
    assert recipe.data.train == ["a", "b"]
    assert recipe.run.name == "123"
    assert recipe.serving.deterministic is False


def test_short_names_of_what_is_changed_most_often():
    recipe = assemble("tiny_cpu", ["agent=mini_swe_agent", "sandbox=overlay"])
    assert (recipe.rollout.agent, recipe.rollout.sandbox) == ("mini_swe_agent", "overlay")


def test_keys_within_a_section_of_a_section():
    recipe = assemble("tiny_cpu", ["model.config.num_hidden_layers=6", "model.config.rope_theta=1000000"])
    assert recipe.model.config["num_hidden_layers"] == 6
    assert len(recipe.model.shape.layers) == 6 and recipe.model.shape.megatron["rotary_base"] == 1_000_000


def test_a_mapping_within_a_mapping():
    inner = "model.config={model_type: qwen2, text_config: {hidden_size: 64, vocab_size: 8}}"
    recipe = assemble("tiny_cpu", [inner, "model.config.text_config.hidden_size=32"])
    assert recipe.model.config["text_config"] == {"hidden_size": 32, "vocab_size": 8}
    recipe = assemble("tiny_cpu", [inner, "~model.config.text_config.hidden_size"])
    assert recipe.model.config["text_config"] == {"vocab_size": 8}
    with pytest.raises(UserError, match=r"no model\.config\.text_config\.x to remove: model\.config\.text_config has"):
        assemble("tiny_cpu", [inner, "~model.config.text_config.x"])


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_can_be_overridden_and_reads_back_equal(name, tmp_path):
    (first, *_) = resolve(name).data.eval
    recipe = resolve(name, ["run.seed=7", "data.train=[my/tasks.jsonl]", "optimizer.lr=2e-6", f"~data.eval.{first}"])
    assert (recipe.run.seed, recipe.data.train, recipe.optimizer.lr) == (7, ["my/tasks.jsonl"], 2e-6)
    assert first not in recipe.data.eval
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    assert resolve(str(tmp_path / "recipe.yaml")) == recipe


def test_evaluation_sets_can_be_added_and_dropped():
    recipe = resolve("tiny_cpu", ["data.eval.mine=my.jsonl", "~data.eval.unseen"])
    assert recipe.data.eval == {"heldout": "synthetic:heldout", "mine": "my.jsonl"}


@pytest.mark.parametrize(
    ("overrides", "sets"),
    [
        (["data.eval={}"], {}),
        (["data.eval={mine:my.jsonl}"], {"mine": "my.jsonl"}),
        (["data.eval={mine:my.jsonl}", "data.eval.heldout=other"], {"mine": "my.jsonl", "heldout": "other"}),
        (["data.eval.dropped=a", "~data.eval.unseen", "data.eval={mine:my.jsonl}"], {"mine": "my.jsonl"}),
        (["data.eval={a:b}", "data.eval={}", "+data.eval.mine=my.jsonl"], {"mine": "my.jsonl"}),
    ],
)
def test_a_mapping_is_replaced_as_it_is_given(overrides, sets, tmp_path):
    recipe = resolve("tiny_cpu", overrides)
    assert recipe.data.eval == sets
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert resolve(str(tmp_path / "recipe.yaml")).data.eval == sets


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.eval=mine", "data.eval=mine is not allowed: it must be a mapping of texts"),
        ("tiny_cpu", "did you mean recipe=tiny_cpu?"),
        ("rollout.max_turn=3", "no key 'rollout.max_turn': did you mean rollout.max_turns"),
        ("max_turns=3", "did you mean rollout.max_turns or forecast.turns?"),
        ("learning_rate=3", "the sections are model, rollout"),
        ("+extra=1", "no key 'extra'"),
        ("rollout=3", "rollout is a section"),
        ("model.config=3", "model.config=3 is not allowed: it must be a mapping, such as {a:1}"),
        ("model.config.num_hidden_layer=3", "did you mean model.config.num_hidden_layers"),
        ("model.config.num_hidden_layers=deep", "num_hidden_layers='deep' is not allowed: it must be a whole number"),
        ("rollout.max_turns=many", "rollout.max_turns=many is not allowed: it must be a whole number"),
        ("rollout.max_turns=1.5", "it must be a whole number"),
        ("optimizer.lr=null", "optimizer.lr=null is not allowed: it must be a number"),
        ("data.train=foo", "a list of texts"),
        ("run.trackers=wandb", "a list of texts"),
        ("serving.deterministic=perhaps", "true or false"),
        ("~rollout.max_turns", "can't be removed"),
        ("rollout.max_turns", "write key=value"),
        ("rollout.max_turns=1,2", "write key=value"),
        ("run.name=${x}", "run.name='${x}' is not allowed: it must be a folder name"),
        ("~data.eval.nothing", "there is no data.eval.nothing to remove: data.eval has heldout, unseen"),
        ("optimizer.lr=-1", "more than 0"),
    ],
)
def test_a_wrong_override_says_what_is_allowed(override, said):
    with pytest.raises(UserError) as error:
        resolve("tiny_cpu", [override])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_saved_recipe_reads_back_equal(tmp_path):
    path = tmp_path / "recipe.yaml"
    recipe = resolve("tiny_cpu", ["optimizer.lr=1e-5", "rollout.system_prompt='Fix it: now, \"please\" ü'"])
    save_recipe(recipe, path)
    assert read_recipe(path) == recipe
    assert resolve(str(path)) == recipe
    assert resolve(str(path), ["run.seed=7"]).run.seed == 7


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"rollout: {max_turns: many}", "rollout.max_turns=many is not allowed"),
        (b"rollout: {max_turn: 3}", "did you mean rollout.max_turns"),
        (b"rollout: 3", "rollout is a section"),
        (b"name: mine", "description is missing"),
        (b"model: {checkpoint: m, config: {model_type: qwen2}}", "is missing"),
        (b"a: b: c", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "must hold a mapping"),
        (b"- 1", "must hold a mapping"),
        (b"1: 2", "must hold a mapping"),
    ],
)
def test_a_broken_recipe_file_is_named_with_what_is_wrong(tmp_path, content, said):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        resolve(str(path))
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_missing_recipe_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"can't read recipe .*nope.yaml: No such file"):
        resolve(str(tmp_path / "nope.yaml"))
    with pytest.raises(UserError, match="directory"):
        resolve(f"{tmp_path}/")


def test_a_recipe_file_without_optional_sections_takes_their_defaults(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\ndescription: d\nhardware: h\nmodel:\n  checkpoint: m\n  config:\n"
        "    {model_type: qwen2, num_hidden_layers: 2, hidden_size: 64, intermediate_size: 128, vocab_size: 500,\n"
        "     num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true, rope_theta: 10000,\n"
        "     rms_norm_eps: 0.000001, max_position_embeddings: 2048}\n"
        "rollout: {batch_size: 2, samples_per_task: 2, max_turns: 3, max_response: 10, max_context: 100}\n"
        "data: {train: [a.jsonl]}\noptimizer: {lr: 1e-3}\nrun: {num_rollouts: 1}\n"
    )
    recipe = resolve(str(path))
    assert recipe.optimizer.lr == 1e-3
    assert recipe.algorithm == type(load_recipe("tiny_cpu").algorithm)()
