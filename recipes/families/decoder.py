"""What families of today's decoders have in common: rotary positions, RMS norms, no biases but before attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.families import Config
from slime_swe.recipes.layers import Layer, Shape
from slime_swe.recipes.layers.attention import GroupedAttention, LatentAttention
from slime_swe.recipes.layers.feed_forward import Experts, GatedFeedForward

SOFTMAX_ROUTER: Mapping[str, Any] = {
    "moe_router_score_function": "softmax",
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": ["none"],
    "moe_aux_loss_coeff": [0.0],
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}
"""As in all of SLiME's scripts for mixtures of Qwen."""
ROTARY = ("rope_scaling", "rope_parameters")  # sections of rotary positions, the second from transformers 5 on


def grouped_attention(config: Config, usual_head: int | None = None, **parts: bool) -> GroupedAttention:
    """Read grouped-query attention. usual_head: size of a head where the config states none, as transformers has it;
    None is an even share. parts: of `GroupedAttention`, which the family decides."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads")
    if heads % kv_heads:
        raise UserError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
    return GroupedAttention(hidden, heads, kv_heads, config.size("head_dim", usual_head or hidden // heads), **parts)


def latent_attention(config: Config, query_rank: int) -> LatentAttention:
    """Read latent attention. query_rank: of `LatentAttention`, where the family reads it."""
    config.only("attention_bias", False)
    config.only("rope_interleave", True)
    heads = config.size("num_attention_heads")
    config.only("num_key_value_heads", heads, stated=True)
    return LatentAttention(
        config.size("hidden_size"),
        heads,
        query_rank=query_rank,
        cache_rank=config.size("kv_lora_rank"),
        plain_dim=config.size("qk_nope_head_dim"),
        rotary_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )


def experts(config: Config, **shared: Any) -> Experts:
    """Read a mixture of experts. shared: of `Experts`, of an expert that every token goes to."""
    count, chosen = config.size("num_experts"), config.size("num_experts_per_tok")
    if chosen > count:
        raise UserError(f"num_experts_per_tok={chosen} is more than num_experts={count}")
    return Experts(config.size("hidden_size"), count, chosen, config.size("moe_intermediate_size"), **shared)


def unscaled(config: Config) -> dict[str, Any]:
    """Return the flags of plain rotary positions: none. Raises `UserError` where they are scaled."""
    for key in ROTARY:
        if config.has(key):
            config.section(key).only("type", "default")
            config.section(key).only("rope_type", "default")
    return {}


def decoder(
    config: Config,
    layers: Iterable[Layer],
    *,
    tied: bool | None = None,
    scaling: Callable[[Config], Mapping[str, Any]] = unscaled,
    **flags: Any,
) -> Shape:
    """Read a decoder. tied: of a config that does not say so itself, but one that holds it. scaling: reads how rotary
    positions are scaled; it returns Megatron's flags for that, or refuses. flags: attributes of Megatron that the
    family's kinds of layers add to those of every decoder."""
    config.only("hidden_act", "silu")
    tied = config.flag("tie_word_embeddings", False) if tied is None else tied
    shape = Shape(
        hidden=config.size("hidden_size"),
        vocab=config.size("vocab_size"),
        tied=tied,
        max_context=config.size("max_position_embeddings"),
        layers=tuple(layers),
        megatron={
            "num_layers": config.size("num_hidden_layers"),
            "hidden_size": config.size("hidden_size"),
            "vocab_size": config.size("vocab_size"),
            "untie_embeddings_and_output_weights": not tied,
            "position_embedding_type": "rope",
            "rotary_base": rotary_base(config),
            **scaling(config),
            "normalization": "RMSNorm",
            "layernorm_epsilon": config.number("rms_norm_eps"),
            "swiglu": True,
            "add_bias_linear": False,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            **flags,
        },
    )
    assert len(shape.layers) == shape.megatron["num_layers"], len(shape.layers)
    return shape


def dense_decoder(config: Config, attention: GroupedAttention, **more: Any) -> Shape:
    """Read a decoder with the same two parts in every layer. more: of `decoder`."""
    config.only("use_sliding_window", False)
    feed_forward = GatedFeedForward(config.size("hidden_size"), config.size("intermediate_size"))
    layers = [Layer(attention, feed_forward)] * config.size("num_hidden_layers")
    return decoder(config, layers, ffn_hidden_size=feed_forward.width, **attention_flags(attention), **more)


def rotary_base(config: Config) -> int:
    """Read `rope_theta`, which transformers 5 moved into `rope_parameters`; Megatron takes whole numbers alone."""
    theta = config.number("rope_theta", within="rope_parameters")
    if theta != int(theta):
        raise UserError(f"rope_theta={theta} is not whole, and Megatron's --rotary-base takes no other")
    return int(theta)


def attention_flags(attention: GroupedAttention) -> dict[str, Any]:
    return {
        "num_attention_heads": attention.heads,
        "group_query_attention": True,
        "num_query_groups": attention.kv_heads,
        "kv_channels": attention.head_dim,
        "add_qkv_bias": attention.qkv_bias,
        "qk_layernorm": attention.qk_norm,
    }


def latent_flags(attention: LatentAttention) -> dict[str, Any]:
    query_rank = {"q_lora_rank": attention.query_rank} if attention.query_rank else {}
    return query_rank | {
        "multi_latent_attention": True,
        "num_attention_heads": attention.heads,
        "kv_lora_rank": attention.cache_rank,
        "qk_head_dim": attention.plain_dim,
        "qk_pos_emb_head_dim": attention.rotary_dim,
        "v_head_dim": attention.value_dim,
        "kv_channels": attention.plain_dim,
        "qk_layernorm": True,
        "apply_rope_fusion": False,
    }


def expert_flags(experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.experts,
        "moe_router_topk": experts.chosen,
        "moe_ffn_hidden_size": experts.width,
    }


def toy_decoder(model_type: str, **others: Any) -> dict[str, Any]:
    """Return a `config.json` of two layers; `others` are added to it, or replace what it says."""
    return {
        "model_type": model_type,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "tie_word_embeddings": True,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        **others,
    }
