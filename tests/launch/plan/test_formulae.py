"""The arithmetic of memory and time: published figures, and properties that hold for any model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slime_swe.launch.plan import serving, training
from slime_swe.launch.slime.render import vocabulary_unit
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layers import ONE_SERVER, Layer, Layout, SglangEngine, Shape
from slime_swe.recipes.layers.attention import GroupedAttention
from slime_swe.recipes.layers.feed_forward import Experts, GatedFeedForward
from slime_swe.recipes.registry import load_recipe

CODER_1_5B, CODER_7B, CODER_32B, CODER_30B_A3B = (
    load_recipe(name).model.shape
    for name in ("qwen25_coder_1_5b", "qwen25_coder_7b", "qwen25_coder_32b", "qwen3_coder_30b_a3b")
)
MODELS = (CODER_1_5B, CODER_7B, CODER_32B, CODER_30B_A3B)
NO_SKEW = 1.0


# Published figures


@pytest.mark.parametrize(
    ("model", "billions", "kv_bytes", "rooflines"),
    [
        (CODER_1_5B, 1.54, 28_672, (96.0, 87.1, 55.9)),
        (CODER_7B, 7.62, 57_344, (22.0, 20.9, 15.9)),
        (CODER_32B, 32.76, 262_144, (4.97, 4.78, 3.88)),
        (CODER_30B_A3B, 30.53, 98_304, (43.0, 35.5, 17.4)),
    ],
)
def test_known_sizes_and_rooflines(model, billions, kv_bytes, rooflines):
    """Parameters; bytes of a token's cache; thousands of tokens/s that 989 TFLOP/s train at most at 4k, 8k, 32k."""
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.005)
    assert model.cache(ONE_SERVER) == kv_bytes
    found = [GPUS["H100-80GB"].flops * 1e9 / training.train_flops(model, length) for length in (4096, 8192, 32768)]
    assert found == pytest.approx(rooflines, rel=0.006)


def test_megatron_bridge_counts_23_gflop_a_token_for_30b_a3b():
    assert training.train_flops(CODER_30B_A3B, 4096) == pytest.approx(203e12 / 8826, rel=0.005)


def test_full_recomputation_costs_a_third_more():
    assert training.train_flops(CODER_7B, 8192, "full") == pytest.approx(4 / 3 * training.train_flops(CODER_7B, 8192))


def test_one_gpu_holds_18_bytes_a_parameter():
    """Megatron-LM's estimate without a distributed optimizer; the 7B model's table needs no padding."""
    layout = Layout(gpus=1)
    held = training.shard(CODER_7B, layout, 0)
    lasting = training.weight_bytes(held) + training.gradient_bytes(held)
    lasting += training.optimizer_bytes(held, layout, offload=False)
    assert lasting == 18 * CODER_7B.parameters


def test_host_memory_of_slimes_30b_a3b_script():
    """SLiME's issue 1851: 102 GB in each of 8 trainer processes with tp 4, ep 8, offloaded optimizer and a reference.
    The formulae give the tensors; the rest is the process."""
    layout = Layout(gpus=8, tp=4, ep=8)
    held = training.shard(CODER_30B_A3B, layout, 0)
    tensors = training.host_state_bytes(held, layout, offload=True, paused=True)
    tensors += training.host_weight_bytes(held, reference=True)
    assert 0.8 * 102e9 < tensors < 102e9


def test_peak_of_megatron_bridges_30b_a3b_run():
    """61.35 GB on each of 16 H100s: ep 16, 4,096 tokens, nothing recomputed, gradients in bf16, and a fused
    cross-entropy, which keeps the logits in bf16 once. Configuration: Megatron-Bridge `scripts/performance`; figure:
    its pull request 3880."""
    layout, tokens = Layout(gpus=16, ep=16), 4096
    held = training.shard(CODER_30B_A3B, layout, 0)
    lasting = 2 * training.weight_bytes(held) + training.optimizer_bytes(held, layout, offload=False)
    kept = training.saved_bytes(CODER_30B_A3B, layout, tokens, recompute="none", stage=0, in_flight=1, skew=NO_SKEW)
    logits = 2 * tokens * CODER_30B_A3B.vocab
    assert lasting + kept + logits == pytest.approx(61.35e9, rel=0.05)


def test_slimes_failed_allocation_is_one_of_the_logits_tensors():
    """3.84 GiB for `[T, vocab / 4]` in fp32 means 27,126 tokens of Qwen3-14B's vocabulary; two of them are counted."""
    tokens = int(3.84 * 2**30 / 4 / (151936 / 4))
    wide = replace(CODER_7B, vocab=151936)
    counted = training.logits_bytes(wide, Layout(gpus=4, tp=4), tokens, entropy=False, scaled=False)
    assert counted == pytest.approx(2 * 3.84 * 2**30, rel=0.005)


# Properties

SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def shapes(draw):
    experts = draw(st.sampled_from([0, 8, 32, 128]))
    hidden = 128 * draw(st.integers(1, 64))
    attention = GroupedAttention(
        hidden,
        heads=8 * draw(st.integers(1, 8)),
        kv_heads=draw(SIZES),
        head_dim=draw(st.sampled_from([64, 128])),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        output_gate=draw(st.booleans()),
    )
    dense = GatedFeedForward(hidden, 64 * draw(st.integers(1, 400)))
    shared = {"shared_width": 64 * draw(st.integers(0, 8)), "shared_gate": draw(st.booleans())}
    sparse = Experts(hidden, experts, min(8, experts), 64 * draw(st.integers(1, 40)), **shared)
    layers = draw(st.sampled_from([8, 16, 48]))
    return Shape(
        hidden,
        vocab=1024 * draw(st.integers(1, 200)),
        tied=draw(st.booleans()),
        max_context=32768,
        layers=(Layer(attention, sparse if experts else dense),) * layers,
        megatron={},
    )


@st.composite
def layouts(draw, model):
    ep, etp = (draw(SIZES), draw(st.sampled_from([1, 2]))) if model.experts else (1, 1)
    return Layout(gpus=512, tp=draw(SIZES), pp=draw(SIZES), cp=draw(SIZES), ep=ep, etp=etp)


few = settings(max_examples=40)


def with_layouts(function):
    pairs = shapes().flatmap(lambda model: st.tuples(st.just(model), layouts(model)))
    return few(given(pairs)(function))


@with_layouts
def test_the_gpus_together_hold_the_model(pair):
    model, layout = pair
    attention, feed_forward = model.layers[0].parts
    stages = [training.shard(model, layout, stage) for stage in range(layout.pp)]
    held = sum(stage.dense * layout.tp + stage.expert * layout.ep * layout.etp for stage in stages)
    router = model.hidden * (model.experts + feed_forward.shared_gate) if model.experts else 0
    replicated = len(model.layers) * (2 * model.hidden + 2 * attention.head_dim * attention.qk_norm + router)
    extra = (layout.tp - 1) * (replicated + model.hidden)  # norms and routers; the final norm
    tied_copy = model.vocab * model.hidden if model.tied and layout.pp > 1 else 0
    assert held == pytest.approx(model.parameters + extra + tied_copy, rel=1e-9)


@with_layouts
def test_optimizer_states_are_shared_out_without_rest(pair):
    model, layout = pair
    held = training.shard(model, layout, 0)
    states = training.optimizer_bytes(held, layout, offload=False)
    whole = 12 * (held.dense * layout.tp * layout.pp + held.expert * layout.ep * layout.etp * layout.pp)
    assert states * layout.gpus == pytest.approx(whole)


@with_layouts
def test_offloading_moves_the_states_to_the_machine(pair):
    model, layout = pair
    held = training.shard(model, layout, 0)
    assert training.optimizer_bytes(held, layout, offload=True) == 0
    on_host = training.host_state_bytes(held, layout, offload=True, paused=False)
    assert on_host > training.optimizer_bytes(held, layout, offload=False)


def lasting(model, layout):
    held = training.shard(model, layout, 0)
    states = training.optimizer_bytes(held, layout, offload=False)
    return training.weight_bytes(held) + training.gradient_bytes(held) + states


@pytest.mark.parametrize("way", ["tp", "pp", "cp", "ep", "etp"])
@few
@given(model=shapes(), data=st.data())
def test_no_parallel_size_adds_lasting_bytes_to_a_gpu(way, model, data):
    """With the GPUs of a group growing along, so that the copies of the model stay as many."""
    assume(model.experts or way not in ("ep", "etp"))
    layout = data.draw(layouts(model))
    assume(getattr(layout, way) < 8)
    larger = replace(layout, gpus=2 * layout.gpus, **{way: 2 * getattr(layout, way)})
    assert lasting(model, larger) <= lasting(model, layout) * (1 + 1e-9)


def kept(model, layout, recompute, tokens=4096):
    return training.saved_bytes(model, layout, tokens, recompute=recompute, stage=0, in_flight=1, skew=1.25)


def peak(model, layout, recompute, tokens=4096):
    return kept(model, layout, recompute, tokens) + training.workspace_bytes(
        model, layout, tokens, recompute=recompute, skew=1.25
    )


@with_layouts
def test_more_recomputation_never_keeps_more(pair):
    model, layout = pair
    assert kept(model, layout, "full") < kept(model, layout, "selective") <= kept(model, layout, "none")
    assert (
        peak(model, layout, "full")
        <= peak(model, layout, "selective") + 4096 * 4 * model.layers[0].attention.heads / layout.tp
    )
    assert peak(model, layout, "full") <= peak(model, layout, "none") * (1 + 1e-9)


@with_layouts
def test_activations_shrink_with_tp_and_grow_with_tokens(pair):
    model, layout = pair
    assume(layout.tp < 8)
    wider = replace(layout, tp=2 * layout.tp)
    for recompute in ("none", "selective", "full"):
        assert peak(model, wider, recompute) <= peak(model, layout, recompute)
        assert kept(model, layout, recompute, 8192) == pytest.approx(2 * kept(model, layout, recompute, 4096))


@with_layouts
def test_a_pipeline_keeps_as_much_as_one_stage_would(pair):
    """1F1B: the first of pp stages holds pp micro-batches of 1/pp of the layers."""
    model, layout = pair
    alone = replace(layout, pp=1)
    piped = training.saved_bytes(model, layout, 4096, recompute="none", stage=0, in_flight=layout.pp, skew=NO_SKEW)
    whole = training.saved_bytes(model, alone, 4096, recompute="none", stage=0, in_flight=1, skew=NO_SKEW)
    last_norm = 4096 * 4 * model.hidden / layout.tp if layout.pp > 1 else 0  # another stage's
    assert piped + last_norm == pytest.approx(whole)


@few
@given(shapes(), SIZES)
def test_engine_gpus_hold_each_token_at_least_once(model, gpus):
    alone, together = SglangEngine(1), SglangEngine(gpus)
    each, whole = model.cache(together), model.cache(alone)
    assert each <= whole <= each * gpus
    pool = 2.0**34
    assert serving.capacity(model, together, pool) >= serving.capacity(model, alone, pool)


@few
@given(shapes(), SIZES)
def test_attention_by_data_keeps_no_copies_of_the_cache(model, gpus):
    by_tensor, by_data, pool = SglangEngine(gpus), SglangEngine(gpus, dp_attention=True), 2.0**34
    assert serving.capacity(model, by_data, pool) >= serving.capacity(model, by_tensor, pool)
    assert serving.weight_bytes(model, by_data) >= serving.weight_bytes(model, by_tensor)


@few
@given(shapes(), SIZES)
def test_served_weights_add_up(model, gpus):
    assert serving.weight_bytes(model, SglangEngine(gpus)) * gpus == pytest.approx(2 * model.parameters)


@few
@given(shapes(), SIZES, st.floats(1, 256), st.floats(1, 30000))
def test_decoding_is_slower_with_more_to_read(model, gpus, batch, context):
    def step(batch, context):
        return serving.decode_seconds(
            model, SglangEngine(gpus), batch, context, bandwidth=2e12, flops=4e14, layer_latency=6e-5
        )

    assert step(batch, context) <= step(batch, 2 * context)
    assert step(batch, context) <= step(2 * batch, context)
    assert step(2 * batch, context) / 2 <= step(batch, context)  # a token of a larger batch costs no more


def test_a_lone_request_reads_few_experts_and_a_large_batch_all():
    some, most = (serving.read_bytes(CODER_30B_A3B, batch) for batch in (1, 1024))
    assert some == pytest.approx(training.forward_flops(CODER_30B_A3B, 0), rel=0.01)
    assert most == pytest.approx(2 * (CODER_30B_A3B.parameters - CODER_30B_A3B.vocab * 2048), rel=0.01)


@few
@given(st.integers(1, 16), st.floats(1, 1000))
def test_more_micro_batches_shrink_the_bubble(stages, count):
    assert training.bubble(1, count) == 1
    assert 1 <= training.bubble(stages, 2 * count) <= training.bubble(stages, count) <= stages


@few
@given(st.integers(1, 300_000), SIZES)
def test_padded_vocabulary(vocab, tp):
    """As Megatron pads it with the flag that is rendered."""
    multiple = vocabulary_unit(vocab, tp) * tp
    assert training.padded_vocab(vocab, tp) == -(-vocab // multiple) * multiple
