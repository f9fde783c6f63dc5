"""Models of today, by what their published `config.json` says: read by a family, or refused with what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.plan.training import shard
from slime_swe.recipes.families import FAMILIES, load_family, read_config
from slime_swe.recipes.families import REFUSED as REASONS
from slime_swe.recipes.families.minimax_m2 import WholeNormAttention
from slime_swe.recipes.layers import Layout, SglangEngine, legal_sizes
from slime_swe.recipes.layers.attention import LatentAttention

PUBLISHED = Path(__file__).parent / "published"
TAKEN = {  # billions of parameters, and of those that one token meets; without those that predict further tokens
    "Qwen2.5-Coder-1.5B-Instruct": (1.54, 1.54),
    "Qwen2.5-Coder-7B-Instruct": (7.62, 7.62),
    "Qwen2.5-Coder-32B-Instruct": (32.76, 32.76),
    "Qwen3-4B": (4.02, 4.02),
    "Qwen3-8B": (8.19, 8.19),
    "Qwen3-32B": (32.76, 32.76),
    "Qwen3-235B-A22B": (235.1, 22.2),
    "Qwen3-30B-A3B-Instruct-2507": (30.5, 3.35),
    "Qwen3-Coder-30B-A3B-Instruct": (30.5, 3.35),
    "Qwen3-Coder-Next": (79.7, 3.9),
    "Qwen3.5-4B": (4.2, 4.2),
    "Qwen3.5-9B": (9.0, 9.0),
    "Qwen3.5-27B": (26.9, 26.9),
    "Qwen3.5-35B-A3B": (34.7, 3.45),
    "Qwen3.6-35B-A3B": (34.7, 3.45),
    "GLM-4.5-Air": (106.9, 13.4),
    "GLM-4.7": (352.8, 33.6),
    "GLM-4.7-Flash": (29.9, 3.9),
    "MiniMax-M2.5": (228.7, 11.0),
    "Llama-3.1-8B": (8.03, 8.03),
    "DeepSeek-V3": (671.0, 37.6),
    "Moonlight-16B-A3B-Instruct": (15.96, 2.91),
}
REFUSED = {
    "Kimi-K2-Instruct": "kimi_k2",
    "GLM-5": "glm_moe_dsa",
    "Mistral-7B-Instruct-v0.2": "mistral",
    "Gemma-3-1B": "gemma3_text",
    "Gemma-4-26B-A4B": "gemma4",
    "gpt-oss-20b": "gpt_oss",
    "Nemotron-3-Nano-30B-A3B": "nemotron_h",
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
LLAMA_3_2 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(name):
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def published(name):
    config = config_of(name)
    return read_config(load_family("", config["model_type"]), config)[0]


def test_no_model_type_is_both_read_and_refused():
    assert not REASONS.keys() & {kind for name in FAMILIES for kind in load_family(name).model_types}


def test_every_published_shape_is_taken_or_refused():
    assert {path.stem for path in PUBLISHED.glob("*.json")} == {*TAKEN, *REFUSED}


@pytest.mark.parametrize(("name", "billions"), TAKEN.items())
def test_a_model_of_a_known_family_is_read(name, billions):
    shape = published(name)
    found = shape.parameters / 1e9, shape.active_parameters / 1e9
    assert found == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(("name", "kind"), REFUSED.items())
def test_a_model_of_no_family_is_refused_with_what_there_is(name, kind):
    with pytest.raises(UserError, match="is of no family here") as error:
        published(name)
    said = str(error.value)
    assert repr(kind) in said and "name yours in model.family" in said
    models, reason = REASONS[kind]
    assert said.endswith(f"{models} ({kind}) can't be trained here: {reason}")
    with pytest.raises(UserError, match=f"it is a {kind} model, and the recipe is for qwen2 models. {models}"):
        read_config(load_family("qwen2"), config_of(name))
    assert all(load_family(family).model_types[0] in said for family in FAMILIES)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("GLM-4.7", {"attention_bias": False}, "attention_bias is False, and only True"),
        ("GLM-4.7", {"n_group": 8}, "n_group is 8, and only 1"),
        ("GLM-4.7", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("GLM-4.7", {"first_k_dense_replace": 92}, "first_k_dense_replace=92 leaves none of 92 layers to experts"),
        ("GLM-4.7", {"num_experts_per_tok": 161}, "num_experts_per_tok=161 is more than n_routed_experts=160"),
        ("GLM-4.7-Flash", {"q_lora_rank": None}, "q_lora_rank is missing"),
        ("GLM-4.7-Flash", {"rope_scaling": {"type": "yarn", "factor": 40}}, "rope_scaling.type is 'yarn'"),
        ("GLM-4.7-Flash", {"num_key_value_heads": 4}, "num_key_value_heads is 4, and only 20"),
        ("MiniMax-M2.5", {"qk_norm_type": "per_head"}, "qk_norm_type is 'per_head', and only 'per_layer'"),
        ("MiniMax-M2.5", {"attn_type_list": [0, 1] * 31}, "attn_type_list is"),
        ("MiniMax-M2.5", {"num_experts_per_tok": 300}, "num_experts_per_tok=300 is more than num_local_experts=256"),
        ("MiniMax-M2.5", {"shared_intermediate_size": 1536}, "shared_intermediate_size is 1536, and only 0"),
        ("DeepSeek-V3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("DeepSeek-V3", {"moe_layer_freq": 2}, "moe_layer_freq is 2, and only 1"),
        ("DeepSeek-V3", {"n_group": 7}, "n_group=7 must divide n_routed_experts=256"),
        ("DeepSeek-V3", {"topk_group": 9}, "n_group=8 must divide .* topk_group be no more"),
        ("DeepSeek-V3", {"topk_group": 3, "num_experts_per_tok": 9}, "num_experts_per_tok=9 is not twice topk_group=3"),
        ("DeepSeek-V3", {"num_key_value_heads": None}, "num_key_value_heads is missing"),
        ("DeepSeek-V3", {"rope_scaling": YARN | {"beta_fast": 1}}, "rope_scaling.beta_fast is 1, and only 32"),
        ("DeepSeek-V3", {"rope_scaling": YARN | {"mscale_all_dim": None}}, "rope_scaling.mscale_all_dim is missing"),
        ("DeepSeek-V3", {"rope_scaling": {"type": "linear", "factor": 40}}, "rope_scaling.type is 'linear'"),
        ("Llama-3.1-8B", {"mlp_bias": True}, "mlp_bias is True"),
        (
            "Llama-3.1-8B",
            {"rope_scaling": LLAMA_3_2},
            "factor is 32.0, and only 8 can be trained: SLiME gives Megatron no",
        ),
        (
            "Llama-3.1-8B",
            {"rope_scaling": LLAMA_3_2 | {"factor": 8.0, "low_freq_factor": 2.0}},
            "low_freq_factor is 2.0",
        ),
        ("Llama-3.1-8B", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ("Llama-3.1-8B", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.type is 'linear'"),
        ("MiniMax-M2.5", {"scoring_func": "softmax"}, "scoring_func is 'softmax', and only 'sigmoid'"),
    ],
)
def test_a_part_that_cannot_be_trained_is_named(name, change, said):
    config = config_of(name) | change
    with pytest.raises(UserError, match=said):
        read_config(load_family("", config["model_type"]), config)


def test_llama_s_positions_are_scaled_where_its_config_says_so():
    config = config_of("Llama-3.1-8B")
    family, scaling = load_family("llama"), config.pop("rope_scaling")
    theta = config.pop("rope_theta")
    written = {**config, "rope_parameters": {**scaling, "rope_theta": theta}}  # as transformers 5 does
    assert read_config(family, written)[0] == published("Llama-3.1-8B")
    assert published("Llama-3.1-8B").megatron["use_rope_scaling"]
    plain = read_config(family, {**config, "rope_theta": theta})[0]
    assert "use_rope_scaling" not in plain.megatron


def latent():
    return published("GLM-4.7-Flash").layers[0].attention


def test_a_latent_cache_is_as_large_however_many_gpus_attend():
    attention = latent()
    assert isinstance(attention, LatentAttention)
    sizes = {attention.cache(SglangEngine(gpus, dp)) for gpus in (1, 4) for dp in (False, True)}
    assert sizes == {2 * (512 + 64)}


def test_queries_without_a_latent_are_shared_out_by_heads():
    """A key that is left out means DeepSeek-V3's rank, and null means none."""
    config = config_of("Moonlight-16B-A3B-Instruct")
    attention = published("Moonlight-16B-A3B-Instruct").layers[0].attention
    assert isinstance(attention, LatentAttention)
    whole, part = (attention.shard(Layout(tp, tp=tp)).dense for tp in (1, 4))
    shared = 2048 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 2048
    assert whole == shared + 2048 * (512 + 64) + 512 + 2048
    assert whole - part == shared * 3 / 4
    del config["q_lora_rank"]
    with pytest.raises(UserError, match="q_lora_rank is missing"):
        read_config(load_family("deepseek_v3"), config)


def test_a_router_of_one_group_has_no_groups():
    assert published("DeepSeek-V3").megatron["moe_router_num_groups"] == 8
    assert "moe_router_num_groups" not in published("Moonlight-16B-A3B-Instruct").megatron


def test_tensor_parallelism_shares_out_heads_and_no_latents():
    attention = latent()
    assert legal_sizes(attention.trainer_cuts()) == legal_sizes(attention.engine_cuts()) == [1, 2, 4, 5, 10, 20]
    whole, part = (attention.shard(Layout(tp, tp=tp)).dense for tp in (1, 4))
    assert whole == attention.parameters
    assert part == attention.of_heads / 4 + attention.replicated + attention.hidden


@pytest.mark.parametrize("name", ["GLM-4.7-Flash", "MiniMax-M2.5"])
def test_what_attention_keeps_shrinks_by_tp_and_by_recomputing(name):
    attention = published(name).layers[-1].attention
    kept = [attention.saved(Layout(tp, tp=tp), selective=False, skew=1.0) for tp in (1, 2, 4)]
    assert kept == sorted(kept, reverse=True)
    assert attention.saved(Layout(), selective=True, skew=1.0) < kept[0]


def test_a_norm_over_all_heads_is_on_every_gpu():
    attention = published("MiniMax-M2.5").layers[0].attention
    assert isinstance(attention, WholeNormAttention)
    norms = attention.queries + attention.keys
    shares = [attention.shard(Layout(tp, tp=tp)).dense - norms - attention.hidden for tp in (1, 8)]
    assert shares[0] == 8 * shares[1]


def test_the_first_stage_has_the_dense_layers():
    shape = published("GLM-4.7")
    first, last = (shard(shape, Layout(64, tp=8, pp=4, ep=8), stage) for stage in (0, 3))
    assert first.expert / last.expert == pytest.approx(20 / 23)
