"""Qwen3 with experts in every layer: Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B.

Megatron's switches are those of SLiME's `scripts/models/qwen3-*-A*.sh`, whose values are not taken over. The router's
softmax is over the chosen experts, which normalises their weights, as `norm_topk_prob` asks.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.decoder import (
    SOFTMAX_ROUTER,
    attention_flags,
    decoder,
    expert_flags,
    experts,
    grouped_attention,
    toy_decoder,
)
from slime_swe.recipes.layers import Layer, Shape


class Qwen3Moe(Family):
    model_types = ("qwen3_moe",)
    tool_format = "hermes"
    adapters = True

    def read(self, config: Config) -> Shape:
        config.only("attention_bias", False)
        config.only("use_sliding_window", False)
        config.only("decoder_sparse_step", 1)
        config.only("mlp_only_layers", [])
        config.only("norm_topk_prob", True, stated=True)
        attention, mixture = grouped_attention(config, qk_norm=True), experts(config)
        layers = config.size("num_hidden_layers")
        return decoder(
            config,
            [Layer(attention, mixture)] * layers,
            ffn_hidden_size=config.size("intermediate_size"),  # of no layer, and Megatron wants one
            moe_layer_freq=[1] * layers,  # not 1: Megatron names a checkpoint's tensors by it, and this is SLiME's
            moe_router_pre_softmax=False,
            **attention_flags(attention),
            **expert_flags(mixture),
            **SOFTMAX_ROUTER,
        )

    def toy(self) -> dict[str, Any]:
        mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        return toy_decoder("qwen3_moe", tie_word_embeddings=False, **mixture)
