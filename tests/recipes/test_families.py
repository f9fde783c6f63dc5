"""What a family states: shapes read from config.json, parameter counts of real models, and one from outside."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.recipes.shapes import config_of, toy

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.render import render
from slime_swe.recipes.architecture import differences
from slime_swe.recipes.families import FAMILIES, load_family, read_architecture, tool_format_of
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS

DENSE = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
MIXTURE = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5472,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def read(config):
    return load_family(config["model_type"]).read(config)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # exactly where the published count is known, else to the digits of the model card
        ("qwen25_coder_1_5b", 1_543_714_304, 1_543_714_304),
        ("qwen25_coder_7b", 7_615_616_512, 7_615_616_512),
        ("qwen25_coder_32b", 32_763_876_352, 32_763_876_352),
        ("qwen3_coder_30b_a3b", pytest.approx(30.53e9, abs=5e6), pytest.approx(3.35e9, abs=5e6)),
        ("qwen3_4b_instruct", pytest.approx(4.02e9, abs=5e6), pytest.approx(4.02e9, abs=5e6)),
    ],
)
def test_parameters_of_published_models(name, total, active):
    architecture = load_recipe(name).model.architecture
    assert architecture.parameters == total
    assert architecture.active_parameters == active


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_builds_a_family_s_toy_with_the_parameters_that_we_count(name):
    transformers = pytest.importorskip("transformers")
    family = load_family(name)
    shape = toy(family)
    config = transformers.AutoConfig.for_model(**config_of(shape))
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert bool(shape.experts) == bool(family.expert_keys)
    assert family.tool_format in TOOL_FORMATS


@pytest.mark.parametrize(("name", "config"), [("qwen25_coder_1_5b", DENSE), ("qwen3_coder_30b_a3b", MIXTURE)])
def test_recipes_state_what_the_published_config_says(name, config):
    assert differences(load_recipe(name).model.architecture, read(config)) == {}


@pytest.mark.parametrize("name", RECIPES)
def test_a_config_written_from_a_recipe_reads_back_as_its_architecture(name, tmp_path):
    stated = load_recipe(name).model.architecture
    (tmp_path / "config.json").write_text(json.dumps(config_of(stated)))
    assert read_architecture(tmp_path, stated.family) == stated


def test_the_rotary_base_is_read_where_newer_writers_put_it():
    config = {**DENSE, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    del config["rope_theta"]
    assert read(config) == read(DENSE)


def test_differences_name_both_values():
    stated = dataclasses.replace(read(DENSE), rope_theta=1e4, layers=27)
    assert differences(stated, read(DENSE)) == {"rope_theta": (1e4, 1e6), "layers": (27, 28)}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**DENSE, "use_sliding_window": True}, "use_sliding_window is True"),
        ({**DENSE, "hidden_act": "gelu"}, "hidden_act is 'gelu', and only 'silu'"),
        ({**DENSE, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rotary scaling is 'yarn'"),
        ({**DENSE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rotary scaling is 'yarn'"),
        ({**MIXTURE, "attention_bias": True}, "attention_bias is True"),
        ({**MIXTURE, "mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({**MIXTURE, "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({**MIXTURE, "norm_topk_prob": False}, "norm_topk_prob is False"),
        ({key: value for key, value in MIXTURE.items() if key != "norm_topk_prob"}, "norm_topk_prob is None"),
        ({name: value for name, value in DENSE.items() if name != "hidden_size"}, "'hidden_size' is missing"),
        ({name: value for name, value in DENSE.items() if name != "rope_theta"}, "'rope_theta' is missing"),
    ],
)
def test_what_could_not_be_trained_is_refused(config, said):
    with pytest.raises(UserError, match=said):
        read(config)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('{"model_type": "gpt2"}', "config.json: it is a gpt2 model, and the recipe is for qwen2 models"),
        (None, r"can't read .*config\.json: No such file"),
    ],
)
def test_a_file_that_is_no_such_config_is_named(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        read_architecture(tmp_path, "qwen2")
    assert str(tmp_path) in str(error.value)


OUTSIDE = """
from dataclasses import replace

from slime_swe.recipes import qwen25_coder_7b
from slime_swe.recipes.families import Family
from tests.recipes.shapes import toy

OURS = Family(
    model_type="ours",
    qkv_bias=False,
    qk_norm=False,
    tool_format="qwen3_coder",
    expert_keys={"experts": "num_local_experts", "experts_per_token": "top_k", "expert_ffn": "expert_size"},
    optional={"attention_sinks": False},
    flags={"spec": ["ours.megatron", "layer_spec"], "moe_router_score_function": "sigmoid"},
)

def recipe():
    base = qwen25_coder_7b.recipe()
    shape = replace(toy(OURS), family="ourfamily.OURS", max_context=65536)
    model = replace(base.model, checkpoint="me/ours", architecture=shape)
    return replace(base, name="ours", model=model)
"""


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A module with a family and a recipe in the current folder, and a checkpoint's config.json in its model folder."""
    (tmp_path / "ourfamily.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    family = load_family("ourfamily.OURS")
    folder = tmp_path / "models" / "me" / "ours"
    folder.mkdir(parents=True)
    shape = dataclasses.replace(toy(family), family="ourfamily.OURS", max_context=65536)
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return folder, shape


def test_a_family_from_outside_is_checked_planned_and_rendered(ours, tmp_path):
    folder, shape = ours
    recipe = resolve("ourfamily", ["parallel.tp=1", "serving.gpus_per_engine=1", "parallel.ep=2"])
    assert make_plan(recipe).fits
    assert tool_format_of(recipe.model) == "qwen3_coder"
    flags = render(recipe, tmp_path / "run", checkouts=Checkouts(tmp_path, tmp_path)).flags["model"]
    assert " ".join(flags).find("--spec ours.megatron layer_spec") >= 0
    assert {"--num-experts", "--moe-router-score-function"} <= set(flags) and "--add-qkv-bias" not in flags
    larger = dataclasses.replace(shape, layers=8)
    (folder / "config.json").write_text(json.dumps(config_of(larger)))
    assert resolve("ourfamily", ["model=me/ours", "parallel.tp=1"]).model.architecture == larger
    with pytest.raises(UserError, match=r"model\.architecture\.layers=2 is not what .* says, 8"):
        resolve("ourfamily", ["parallel.tp=1"])


def test_the_rules_hold_for_a_family_from_outside(ours):
    with pytest.raises(UserError, match=r"qk_norm=true is what ourfamily\.OURS models don't have"):
        resolve("ourfamily", ["model.architecture.qk_norm=true"])
    assert resolve("ourfamily", ["parallel.tp=1", "model.tool_format=slime_swe.rollout.chat.hermes.HERMES"])
    with pytest.raises(UserError, match="make no mixture"):
        resolve("ourfamily", ["model.architecture.experts=0"])


@pytest.mark.parametrize("name", ["llama", "ourfamily.NONE", "ourfamily.recipe", "nowhere.FAMILY"])
def test_what_is_no_family_is_refused_with_what_there_is(ours, name):
    with pytest.raises(UserError, match=r"model\.architecture\.family=.*qwen2, qwen3, qwen3_moe, or a dotted path"):
        resolve("ourfamily", [f"model.architecture.family={name}"])
