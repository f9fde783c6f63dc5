"""Linear attention: whole on every GPU of the trainer, cut in a server, with a state and no cache."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from slime_swe.launch.engines import violations
from slime_swe.launch.plan import Assumptions, serving, training
from slime_swe.launch.plan.rollout import STATES, slots_of
from slime_swe.launch.plan.serving import cache_pool, cache_tokens, running_requests, sglang_engine
from slime_swe.recipes.families import load_family, read_config
from slime_swe.recipes.layers import ONE_GPU, ONE_SERVER, Layout, SglangEngine, Shard
from slime_swe.recipes.layers.attention import GatedDeltaNet
from tests.recipes.changes import changed, variant

CODER_NEXT = {
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
SHAPE, _ = read_config(load_family("qwen3_next"), CODER_NEXT)
LINEAR = next(part for part in SHAPE.parts if isinstance(part, GatedDeltaNet))
SIZES = (1, 2, 4, 8)


def large(**changes):
    """The recipe for a mixture of experts, with this model's shape and more machines."""
    recipe = variant("qwen3_coder_30b_a3b", cluster__nodes=4, parallel__tp=2, serving__gpus_per_engine=8, **changes)
    return changed(recipe, "model.config", CODER_NEXT)


def test_the_published_size_cache_and_state():
    """80 B of which 3 B are active, embeddings aside; 12 layers with a cache, 36 with a state: SGLang's shapes
    (32, 128, 128) in fp32 and (8192, 3) in bf16."""
    assert SHAPE.parameters == pytest.approx(79.67e9, abs=1e7)
    assert SHAPE.active_parameters - 2 * SHAPE.table == pytest.approx(3.25e9, abs=1e7)
    assert SHAPE.cache(ONE_SERVER) == 12 * 2 * 2 * 2 * 256
    assert SHAPE.state(ONE_SERVER) == 36 * (4 * 32 * 128 * 128 + 2 * 8192 * 3)


@pytest.mark.parametrize("tp", SIZES)
@pytest.mark.parametrize("cp", SIZES)
def test_every_gpu_of_a_group_holds_and_computes_all_of_it(tp, cp):
    layout = Layout(gpus=64, tp=tp, cp=cp)
    assert LINEAR.shard(layout) == LINEAR.shard(ONE_GPU) == Shard(dense=LINEAR.parameters)
    assert LINEAR.copies(layout) == tp * cp
    for needed in (
        LINEAR.saved(layout, selective=False, skew=1) / LINEAR.saved(ONE_GPU, selective=False, skew=1),
        LINEAR.workspace(layout, skew=1) / LINEAR.workspace(ONE_GPU, skew=1),
    ):
        assert needed == cp  # tokens of other ranks, of which it has 1/cp
    assert LINEAR.trainer_cuts() == ()


def test_what_is_computed_often_costs_as_often():
    """Of the GPUs together; the rest of the model is computed once, however it is cut."""
    alone, cut = (training.forward_flops(SHAPE, 32768, layout) for layout in (ONE_GPU, Layout(gpus=8, tp=4, cp=2)))
    linear = 36 * LINEAR.flops(32768)
    assert cut - alone == pytest.approx(7 * linear)
    assert LINEAR.flops(1024) == LINEAR.flops(131072)


@pytest.mark.parametrize("tp", SIZES)
def test_full_recomputation_keeps_the_input_alone(tp):
    layout = Layout(gpus=32, tp=tp, cp=4, ep=8)
    kept = [
        training.saved_bytes(SHAPE, layout, 1024, recompute=recompute, stage=0, in_flight=1, skew=1.0)
        for recompute in ("full", "selective", "none")
    ]
    assert kept[0] == 1024 * (48 * 2 * 2048 + 4 * 2048) / tp
    assert kept[0] < kept[1] <= kept[2]


def test_a_pipeline_is_cut_by_layers_of_both_kinds():
    layout = Layout(gpus=64, tp=2, pp=4, ep=8)
    stages = [training.shard(SHAPE, layout, stage) for stage in range(4)]
    held = sum(stage.expert for stage in stages) * 8
    assert held == 48 * 3 * 2048 * 512 * 512
    assert stages[1] == stages[2]


@pytest.mark.parametrize("gpus", SIZES)
def test_an_engine_shares_out_states_but_for_attention_by_data(gpus):
    together, by_data = SglangEngine(gpus), SglangEngine(gpus, dp_attention=True)
    assert SHAPE.state(together) * gpus == SHAPE.state(by_data) == SHAPE.state(ONE_SERVER)
    assert serving.weight_bytes(SHAPE, together) * gpus == pytest.approx(2 * SHAPE.parameters)
    pool = 2.0**35
    assert serving.running(SHAPE, together, pool) >= serving.running(SHAPE, ONE_SERVER, pool)


def test_states_and_cache_together_take_no_more_than_there_is():
    recipe = large()
    engine, pool = sglang_engine(recipe), cache_pool(recipe)
    taken = cache_tokens(recipe) * SHAPE.cache(engine)
    taken += running_requests(recipe) * serving.STATES * SHAPE.state(engine)
    assert pool * 0.999 < taken <= pool


def test_a_model_without_a_cache_is_limited_by_its_states_alone():
    stateful = tuple(layer for layer in SHAPE.layers if layer.attention == LINEAR)
    shape = replace(SHAPE, layers=stateful)
    assert serving.capacity(shape, ONE_SERVER, 2.0**30) == serving.NO_LIMIT
    assert serving.running(shape, ONE_SERVER, 2.0**35) < 100


def test_states_limit_the_episodes_where_they_are_what_is_short():
    recipe = large(serving__mem_fraction=0.28, serving__concurrency=4096, rollout__sandbox_concurrency=4096)
    recipe = changed(recipe, "rollout.max_context", 4096)
    slots, limit = slots_of(recipe, Assumptions())
    assert limit == STATES and slots == int(4 * running_requests(recipe))
    assert math.isinf(running_requests(variant("qwen3_coder_30b_a3b")))


def test_a_decoding_step_reads_and_writes_the_states():
    engine, bandwidth = SglangEngine(8), 2e12
    found = serving.decode_seconds(SHAPE, engine, 64, 0, bandwidth=bandwidth, flops=4e14, layer_latency=0)
    states = 64 * 2 * SHAPE.state(engine)
    assert found * bandwidth == pytest.approx(serving.read_bytes(SHAPE, 64) / 8 + states)


def test_heads_that_an_engine_can_t_share_out_are_named():
    config = CODER_NEXT | {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    found = violations(changed(large(), "model.config", config))
    said = next(str(one) for one in found if one.field == "serving.gpus_per_engine")
    assert "4 key heads and 8 value heads of linear attention: use 1, 2 or 4" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"linear_num_key_heads": 5}, "linear_num_key_heads=5 does not divide linear_num_value_heads=32"),
        ({"layer_types": ["full_attention"]}, "for each of num_hidden_layers=48"),
        ({"layer_types": ["sliding_attention"] * 48}, "must name full_attention or linear_attention"),
        ({"mlp_only_layers": [3]}, r"mlp_only_layers is \[3\]"),
        ({"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size is missing"),
    ],
)
def test_what_can_t_be_trained_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        read_config(load_family("qwen3_next"), CODER_NEXT | changes)


def test_a_nested_config_is_read_by_its_own_keys():
    family = load_family("qwen3_5")
    toy = family.toy()
    shape, config = read_config(family, toy)
    assert config.values["text_config.num_hidden_layers"] == len(shape.layers) == 4
    dense = {**toy, "model_type": "qwen3_5", "text_config": {**toy["text_config"], "intermediate_size": 128}}
    shape, config = read_config(family, dense)
    assert shape.experts == 0 and "num_experts" not in shape.megatron
    assert "text_config.num_experts" in config.unread()
    with pytest.raises(ValueError, match=r"text_config\.num_experts is missing"):
        read_config(family, {**toy, "text_config": {**toy["text_config"], "num_experts": None}})
    with pytest.raises(ValueError, match="text_config must be a mapping"):
        read_config(family, {"model_type": "qwen3_5"})
