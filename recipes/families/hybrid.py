"""What Qwen3-Next and Qwen3.5 have in common: gated attention in some layers, linear attention in the others.

SLiME builds both from a `spec` of its own, which reads the layers' kinds from the checkpoint's `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.families import Config
from slime_swe.recipes.families.decoder import (
    SOFTMAX_ROUTER,
    attention_flags,
    decoder,
    expert_flags,
    experts,
    grouped_attention,
    toy_decoder,
)
from slime_swe.recipes.layers import Layer, Part, Shape
from slime_swe.recipes.layers.attention import GatedDeltaNet
from slime_swe.recipes.layers.feed_forward import Experts

FULL, LINEAR = "full_attention", "linear_attention"


def hybrid_decoder(config: Config, feed_forward: Part, *, tied: bool, spec: list[str], width: int) -> Shape:
    """Read a decoder of linear and full attention. spec: module and function of SLiME. width: of a dense layer, which
    Megatron wants where there is none too."""
    config.only("attention_bias", False)
    config.only("mlp_only_layers", [])
    full, linear = grouped_attention(config, usual_head=256, qk_norm=True, output_gate=True), _linear_attention(config)
    return decoder(
        config,
        [Layer(full if kind == FULL else linear, feed_forward) for kind in _kinds(config)],
        tied=tied,
        spec=spec,
        use_gated_attention=True,
        attention_output_gate=True,
        layernorm_zero_centered_gamma=True,
        rotary_percent=config.number("partial_rotary_factor", 0.25, within="rope_parameters"),
        ffn_hidden_size=width,
        **attention_flags(full),
        **(_mixture_flags(config, feed_forward) if isinstance(feed_forward, Experts) else {}),
    )


def mixture(config: Config) -> Experts:
    """Read a mixture with an expert that every token goes to, behind a gate."""
    config.only("decoder_sparse_step", 1)
    return experts(config, shared_width=config.size("shared_expert_intermediate_size"), shared_gate=True)


def _mixture_flags(config: Config, experts: Experts) -> dict[str, Any]:
    return {
        "moe_shared_expert_intermediate_size": experts.shared_width,
        "moe_shared_expert_gate": True,
        "moe_layer_freq": [1] * config.size("num_hidden_layers"),  # of 1, Megatron saves all layers as of one kind
        **expert_flags(experts),
        **SOFTMAX_ROUTER,
    }


def toy_hybrid(model_type: str, **others: Any) -> dict[str, Any]:
    """Return a `config.json` of three layers with linear attention and one without."""
    linear: Mapping[str, Any] = {
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 16,
    }
    return toy_decoder(model_type, num_hidden_layers=4, tie_word_embeddings=False, **linear, **others)


def _linear_attention(config: Config) -> GatedDeltaNet:
    key_heads, value_heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    if value_heads % key_heads:
        raise UserError(f"linear_num_key_heads={key_heads} does not divide linear_num_value_heads={value_heads}")
    return GatedDeltaNet(
        config.size("hidden_size"),
        key_heads=key_heads,
        key_dim=config.size("linear_key_head_dim"),
        value_heads=value_heads,
        value_dim=config.size("linear_value_head_dim"),
        kernel=config.size("linear_conv_kernel_dim"),
    )


def _kinds(config: Config) -> list[str]:
    """List the kind of each layer. As SLiME has them, every fourth is full attention where the config says nothing."""
    interval, layers = config.size("full_attention_interval", 4), config.size("num_hidden_layers")
    usual = [LINEAR if (layer + 1) % interval else FULL for layer in range(layers)]
    kinds = config.texts("layer_types", usual)
    if len(kinds) != layers or not set(kinds) <= {FULL, LINEAR}:
        raise UserError(f"layer_types must name {FULL} or {LINEAR} for each of num_hidden_layers={layers}")
    return kinds
