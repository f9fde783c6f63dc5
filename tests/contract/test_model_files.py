"""What each family tells Megatron of a published model, beside SLiME's own file of that model."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from slime_swe.launch.plan.training import padded_vocab, shard
from slime_swe.launch.slime.render import model_section
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.families import FAMILIES, REFUSED, load_family, read_config
from slime_swe.recipes.families.qwen2 import Qwen2
from slime_swe.recipes.layers import Layout

PUBLISHED = Path(__file__).parents[1] / "recipes" / "published"
FILES = {
    "Qwen2.5-Coder-1.5B-Instruct": "qwen2.5-1.5B",
    "Qwen2.5-Coder-7B-Instruct": "qwen2.5-7B",
    "Qwen2.5-Coder-32B-Instruct": "qwen2.5-32B",
    "Qwen3-4B": "qwen3-4B",
    "Qwen3-8B": "qwen3-8B",
    "Qwen3-32B": "qwen3-32B",
    "Qwen3-235B-A22B": "qwen3-235B-A22B",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3-30B-A3B",
    "Qwen3-Coder-30B-A3B-Instruct": "qwen3-30B-A3B",
    "Qwen3-Coder-Next": "qwen3-next-80B-A3B",
    "Qwen3.5-4B": "qwen3.5-4B",
    "Qwen3.5-9B": "qwen3.5-9B",
    "Qwen3.5-27B": "qwen3.5-27B",
    "Qwen3.5-35B-A3B": "qwen3.5-35B-A3B",
    "Qwen3.6-35B-A3B": "qwen3.5-35B-A3B",
    "GLM-4.5-Air": "glm4.5-106B-A12B",
    "GLM-4.7": "glm4.5-355B-A32B",
    "GLM-4.7-Flash": "glm4.7-30B-A3B",
    "MiniMax-M2.5": "minimax-m2",
    "Llama-3.1-8B": "llama3.1-8B-Instruct",
    "DeepSeek-V3": "deepseek-v3",
    "Moonlight-16B-A3B-Instruct": "moonlight",
}
REQUIRED = ["--rollout-batch-size", "1"]  # of no model
DROPOUT = ("hidden_dropout", "attention_dropout")  # 0.1 by Megatron's default; SLiME's launch scripts set 0
OLDER = ("position_embedding_type", "use_rotary_position_embeddings", "kv_channels")  # rotary by its older flag
BALANCE = "moe_router_load_balancing_type"  # of a loss whose coefficient is 0
DEVIATIONS = {
    "Qwen2.5-Coder-1.5B-Instruct": {*OLDER, "rotary_base"},  # config.json has 1,000,000
    "Qwen2.5-Coder-7B-Instruct": {*OLDER},
    "Qwen2.5-Coder-32B-Instruct": {*OLDER, "layernorm_epsilon"},  # config.json has 1e-6, the base model's 1e-5
    "Qwen3-4B": {*OLDER[:2]},
    "Qwen3-8B": {*OLDER[:2]},
    "Qwen3-32B": {*OLDER[:2]},
    "Qwen3-235B-A22B": {BALANCE},
    "Qwen3-30B-A3B-Instruct-2507": {BALANCE, "rotary_base"},  # the file is of the model before, with fewer positions
    # The file is Qwen3-30B-A3B's: another rotary base, and another width of dense layers, of which there are none.
    "Qwen3-Coder-30B-A3B-Instruct": {BALANCE, "rotary_base", "ffn_hidden_size"},
    "Qwen3-Coder-Next": {BALANCE, "rotary_base"},  # the file is Qwen3-Next's
    "Qwen3.5-35B-A3B": {BALANCE},
    "Qwen3.6-35B-A3B": {BALANCE},
    "GLM-4.5-Air": {"moe_router_topk_scaling_factor"},  # 1, and none is the same
    "GLM-4.7-Flash": {
        "add_qkv_bias",  # Megatron's latent attention never has one
        "add_position_embedding",  # Megatron no longer reads it
        "moe_token_dispatcher_type",  # one that shares out the experts, as in all other files
        "make_vocab_size_divisible_by",  # the planner's, which pads as little
    },
    "MiniMax-M2.5": {"moe_router_bias_update_rate"},  # 0: the router that samples does not move its biases
    "Moonlight-16B-A3B-Instruct": {
        *("moe_router_num_groups", "moe_router_group_topk"),  # 1: one group is none
        "mscale_all_dim",  # of positions that are not scaled
        "masked_softmax_fusion",  # of an attention that is not Transformer Engine's
    },
    # A length of learned positions, of which there are none; a factor that latent attention alone reads.
    "Llama-3.1-8B": {*OLDER[:2], "max_position_embeddings", "rotary_scaling_factor"},
}


@pytest.fixture(scope="module")
def parser(slime_home):
    """Megatron's flags and SLiME's, as SLiME reads them."""
    from megatron.training.arguments import add_megatron_arguments
    from slime.utils.arguments import get_slime_extra_args_provider

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    get_slime_extra_args_provider()(parser)
    return parser


def published(name):
    config = json.loads((PUBLISHED / f"{name}.json").read_text())
    return read_config(load_family("", config["model_type"]), config)[0]


def words_of(file):
    """The arguments that SLiME's file adds to its command line. bash ends each with a zero byte."""
    script = 'source "$1" && printf "%s\\0" "${MODEL_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", str(file)], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(("name", "file"), FILES.items())
def test_our_flags_are_those_of_slimes_file(parser, slime_home, name, file):
    shape = published(name)
    ours, unknown = parser.parse_known_args([*REQUIRED, *SLIME.manifest.to_argv(model_section(shape))])
    assert unknown == []
    theirs, _ = parser.parse_known_args(REQUIRED + words_of(slime_home / "scripts" / "models" / f"{file}.sh"))
    found = {
        key: (mine, vars(theirs)[key]) for key, mine in vars(ours).items() if plain(mine) != plain(vars(theirs)[key])
    }
    assert set(found) == {*DROPOUT, *DEVIATIONS.get(name, ())}, found


def test_each_model_type_that_slime_loads_is_read_or_refused_with_a_reason(slime_home):
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS

    read = {kind for name in FAMILIES for kind in load_family(name).model_types}
    assert read <= _LOADERS.keys() <= read | REFUSED.keys()
    unloaded = {kind for kind, (_, reason) in REFUSED.items() if reason == "SLiME can't load its checkpoints"}
    assert unloaded == REFUSED.keys() - _LOADERS.keys()


def test_a_subclass_of_qwen2_reads_mimo(parser, slime_home):
    """As the refusal of MiMo says. Its layer that predicts further tokens is not trained."""

    class MiMo(Qwen2):
        model_types = ("mimo",)

    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36, "vocab_size": 151680}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False}
    numbers = {"rope_theta": 640000, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768}
    shape, _ = read_config(MiMo(), {"model_type": "mimo", **sizes, **heads, **numbers})
    ours = parser.parse_args([*REQUIRED, *SLIME.manifest.to_argv(model_section(shape))])
    theirs, _ = parser.parse_known_args(REQUIRED + words_of(slime_home / "scripts" / "models" / "mimo-7B-rl.sh"))
    found = {key for key, mine in vars(ours).items() if plain(mine) != plain(vars(theirs)[key])}
    assert found == {*DROPOUT, *OLDER, "max_position_embeddings", "mtp_num_layers"}


def test_no_flag_says_what_kimi_k2_s_positions_need(parser):
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    scaling = json.loads((PUBLISHED / "Kimi-K2-Instruct.json").read_text())["rope_scaling"]
    assert (scaling["beta_fast"], MLATransformerConfig.beta_fast) == (1.0, 32)
    assert not any("beta" in action.dest and "fast" in action.dest for action in parser._actions)


def plain(value):
    """Of a list of one its item."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


COUNTED = {"Qwen2.5-Coder-7B-Instruct": 1, "Qwen3-235B-A22B": 1, "GLM-4.7": 4, "GLM-4.7-Flash": 2, "MiniMax-M2.5": 1}
COUNTED |= {
    "DeepSeek-V3": 4,
    "Moonlight-16B-A3B-Instruct": 2,
    "Llama-3.1-8B": 1,
    "Qwen3-Coder-Next": 4,
    "Qwen3.5-9B": 4,
    "Qwen3.6-35B-A3B": 4,
}
"""Published model -> layers of it that have each of its kinds."""


@pytest.mark.parametrize(("name", "layers"), COUNTED.items())
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 8)])
def test_megatron_builds_as_many_parameters_as_we_count(parser, name, layers, tp, ep, tmp_path, linear_attention):
    """Of one GPU, at the model's full width, on a device of sizes alone."""
    config = json.loads((PUBLISHED / f"{name}.json").read_text())
    text = config.get("text_config", config)
    text["num_hidden_layers"] = layers
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:layers]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_config(load_family("", config["model_type"]), config)[0]
    ep = ep if shape.experts else 1
    args = parser.parse_args([*REQUIRED, *SLIME.manifest.to_argv(model_section(shape, tp))])
    args.hf_checkpoint = str(tmp_path)
    found = sum(parameter.numel() for parameter in built(args, tp, ep).parameters())
    held = shard(shape, Layout(8, tp=tp, ep=ep), 0)
    assert found == held.parameters


def test_llama_s_scaled_positions_are_those_of_transformers(parser):
    import torch
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = json.loads((PUBLISHED / "Llama-3.1-8B.json").read_text())
    args = parser.parse_args([*REQUIRED, *SLIME.manifest.to_argv(model_section(published("Llama-3.1-8B")))])
    rotary = (args.rotary_percent, args.rotary_interleaved)
    made = RotaryEmbedding(
        args.kv_channels, *rotary, None, args.rotary_base, args.use_rope_scaling, use_cpu_initialization=True
    )
    del config["model_type"]
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.for_model("llama", **config), torch.device("cpu"))
    assert torch.allclose(made.inv_freq, scaled, rtol=1e-6)
    plain = 1 / args.rotary_base ** (torch.arange(0, args.kv_channels, 2) / args.kv_channels)
    assert not torch.allclose(made.inv_freq, plain, rtol=1e-2)


@pytest.mark.parametrize("name", ["DeepSeek-V3", "Moonlight-16B-A3B-Instruct", "GLM-4.7-Flash"])
def test_latent_attention_s_positions_are_those_of_transformers(parser, name):
    """Frequencies, what cosines are multiplied with, and what the logits of attention are."""
    import torch
    from megatron.core.models.common.embeddings import yarn_rotary_pos_embedding as yarn
    from megatron.training.arguments import core_transformer_config_from_args
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding, yarn_get_mscale

    config = json.loads((PUBLISHED / f"{name}.json").read_text())
    args = parser.parse_args([*REQUIRED, *SLIME.manifest.to_argv(model_section(published(name)))])
    args.rope_type, args.params_dtype = "yarn", torch.bfloat16  # as SLiME sets them
    ours = core_transformer_config_from_args(args)
    kinds = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings")
    made = yarn.YarnRotaryEmbedding(
        ours.qk_pos_emb_head_dim,
        rotary_base=ours.rotary_base,
        scaling_factor=ours.rotary_scaling_factor,
        use_cpu_initialization=True,
        **{kind: getattr(ours, kind) for kind in kinds},
    )
    theirs = AutoConfig.for_model(**config)
    kind = theirs.rope_parameters["rope_type"]
    default = DeepseekV3RotaryEmbedding.compute_default_rope_parameters
    frequencies, scale = (default if kind == "default" else ROPE_INIT_FUNCTIONS[kind])(theirs, torch.device("cpu"))
    positions = torch.arange(8.0)
    angles, concentration = made(8)
    half = angles.reshape(8, 2, -1)[:, 0]
    assert torch.allclose(half, torch.outer(positions, frequencies), rtol=1e-5, atol=1e-6)
    assert concentration == pytest.approx(scale)
    factor, of_logits = (theirs.rope_parameters.get(key, 1) for key in ("factor", "mscale_all_dim"))
    scale = yarn._yarn_get_mscale(ours.rotary_scaling_factor, ours.mscale_all_dim)
    assert scale == pytest.approx(yarn_get_mscale(factor, of_logits))


def local_block(config, **_):
    """Megatron's specification without Transformer Engine, whatever else was asked for."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(config, use_transformer_engine=False)


@pytest.fixture
def linear_attention(slime_home, monkeypatch):
    """SLiME's linear attention, with PyTorch's modules in place of two of flash-linear-attention's."""
    import torch
    from slime_plugins.models import qwen3_5, qwen3_next
    from transformers.models.qwen3_next import modeling_qwen3_next

    class ShortConvolution(torch.nn.Conv1d):
        def __init__(self, hidden_size, kernel_size, bias):
            super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias)

    class FusedRMSNormGated(torch.nn.RMSNorm):
        def __init__(self, size, eps, **_):
            super().__init__(size, eps)

    for plugin in (qwen3_next, qwen3_5):
        monkeypatch.setattr(plugin, "ShortConvolution", ShortConvolution, raising=False)
        monkeypatch.setattr(plugin, "FusedRMSNormGated", FusedRMSNormGated, raising=False)
        monkeypatch.setattr(plugin, "get_chunk_gated_delta_rule", lambda backend: None)
        monkeypatch.setattr(plugin, "get_gpt_decoder_block_spec", local_block)
        monkeypatch.setattr(plugin.accelerator, "current_device", lambda: torch.device("cpu"))
    for name in ("Qwen3NextAttention", "Qwen3NextRMSNorm"):
        monkeypatch.setattr(qwen3_next, name, getattr(modeling_qwen3_next, name), raising=False)


def built(args, tp, ep):
    """Rank 0 of 8, of Megatron's own modules, or those of SLiME's `--spec`."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.spec_utils import import_module
    from megatron.training.arguments import core_transformer_config_from_args
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Nothing(torch.nn.Module):
        """The core of attention, which has no parameters: PyTorch's own can't be had for latent attention."""

        def __init__(self, *_, **__):
            super().__init__()

    class Duplicated(torch.nn.Linear):
        """Transformer Engine's `Linear`, which Megatron asks to keep all of its weights on each GPU."""

        def __init__(self, size_in, size_out, *, parallel_mode="duplicated", **_):
            assert parallel_mode == "duplicated"
            super().__init__(size_in, size_out, bias=False)

    vars(args).update(
        transformer_impl="local",
        params_dtype=torch.bfloat16,
        tensor_model_parallel_size=tp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1,
        use_cpu_initialization=True,
        perform_initialization=False,
        moe_grouped_gemm=False,  # wants Transformer Engine
        moe_permute_fusion=False,
        sequence_parallel=False,  # of no parameters, and PyTorch's norms can't
        gradient_accumulation_fusion=False,
        no_persist_layer_norm=True,
        layernorm_zero_centered_gamma=False,
        apply_rope_fusion=False,
    )
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        parallel_state.initialize_model_parallel(
            tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1, create_gloo_process_groups=False
        )
        config = core_transformer_config_from_args(args)
        make = import_module(args.spec) if args.spec else lambda args, config, stage: local_block(config)
        spec = make(args, config, None)
        for layer in spec.layer_specs:
            parts = layer.submodules.self_attention.submodules
            if parts is None:  # SLiME's linear attention, which has its own norm
                layer.submodules.input_layernorm = IdentityOp
                continue
            parts.core_attention = Nothing
            if args.multi_latent_attention:
                parts.linear_q_down_proj = parts.linear_kv_down_proj = Duplicated
        with torch.device("meta"), mock.patch.object(multi_latent_attention, "TELinear", Duplicated):
            return GPTModel(
                config,
                spec,
                vocab_size=padded_vocab(args.vocab_size, tp),
                max_sequence_length=1,
                position_embedding_type="rope",
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            )
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
