"""Parameter counts of published models, and what a config.json is taken for."""

from __future__ import annotations

import dataclasses
import json

import pytest

from recipes.architecture import differences, from_hf_config, read_architecture
from recipes.base import RecipeError
from recipes.registry import RECIPES, load_recipe

QWEN2 = {
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


@pytest.mark.parametrize(("name", "config"), [("qwen25_coder_1_5b", QWEN2), ("qwen3_coder_30b_a3b", MIXTURE)])
def test_recipes_state_what_the_published_config_says(name, config):
    assert differences(load_recipe(name).model.architecture, from_hf_config(config)) == {}


def test_the_rotary_base_is_read_where_newer_writers_put_it():
    config = {**QWEN2, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    del config["rope_theta"]
    assert from_hf_config(config) == from_hf_config(QWEN2)


def test_differences_name_both_values():
    stated = dataclasses.replace(from_hf_config(QWEN2), rope_theta=1e4, layers=27)
    assert differences(stated, from_hf_config(QWEN2)) == {"rope_theta": (1e4, 1e6), "layers": (27, 28)}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**QWEN2, "model_type": "llama"}, "'llama'.*qwen2, qwen3, qwen3_moe"),
        ({**QWEN2, "use_sliding_window": True}, "use_sliding_window is True"),
        ({**QWEN2, "hidden_act": "gelu"}, "hidden_act is 'gelu', and only 'silu'"),
        ({**QWEN2, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rotary scaling is 'yarn'"),
        ({**QWEN2, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rotary scaling is 'yarn'"),
        ({**MIXTURE, "attention_bias": True}, "attention_bias is True"),
        ({**MIXTURE, "mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({**MIXTURE, "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({**MIXTURE, "norm_topk_prob": False}, "norm_topk_prob is False"),
        ({name: value for name, value in QWEN2.items() if name != "hidden_size"}, "'hidden_size' is missing"),
        ({name: value for name, value in QWEN2.items() if name != "rope_theta"}, "'rope_theta' is missing"),
    ],
)
def test_what_could_not_be_trained_is_refused(config, said):
    with pytest.raises(RecipeError, match=said):
        from_hf_config(config)


@pytest.mark.parametrize("name", RECIPES)
def test_a_config_written_from_a_recipe_reads_back_as_its_architecture(name, tmp_path):
    stated = load_recipe(name).model.architecture
    (tmp_path / "config.json").write_text(json.dumps(as_config(stated)))
    assert read_architecture(tmp_path) == stated


@pytest.mark.parametrize(("content", "said"), [("{", "is not JSON"), ('{"model_type": "gpt2"}', "config.json: .*gpt2")])
def test_a_file_that_is_no_config_is_named(tmp_path, content, said):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RecipeError, match=said) as error:
        read_architecture(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"can't read .*config\.json: No such file"):
        read_architecture(tmp_path)


def as_config(architecture) -> dict:
    """An architecture as the `config.json` of its checkpoint would state it."""
    config = {
        "model_type": architecture.family,
        "hidden_size": architecture.hidden,
        "intermediate_size": architecture.ffn,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "vocab_size": architecture.vocab,
        "max_position_embeddings": architecture.max_context,
        "rms_norm_eps": architecture.rms_eps,
        "rope_theta": architecture.rope_theta,
        "tie_word_embeddings": architecture.tied,
    }
    if architecture.experts:
        config |= {
            "num_experts": architecture.experts,
            "num_experts_per_tok": architecture.experts_per_token,
            "moe_intermediate_size": architecture.expert_ffn,
            "norm_topk_prob": True,
        }
    return config
