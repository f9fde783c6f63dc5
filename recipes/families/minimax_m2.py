"""MiniMax-M2, 2.5 and 2.7: experts in every layer, and norms over all heads of queries, and of keys, together.

Megatron's switches are those of SLiME's `scripts/models/minimax-m2.sh`, whose values are not taken over, but that its
router's biases stay as they are. The layers that predict further tokens (`num_mtp_modules`) are neither trained nor
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.families import Config, ControlTokens, Family
from slime_swe.recipes.families.decoder import attention_flags, decoder, expert_flags, grouped_attention, toy_decoder
from slime_swe.recipes.families.glm4_moe import SIGMOID_ROUTER
from slime_swe.recipes.layers import Layer, Layout, Shape, Shard
from slime_swe.recipes.layers.attention import GroupedAttention
from slime_swe.recipes.layers.feed_forward import Experts


@dataclass(frozen=True)
class WholeNormAttention(GroupedAttention):
    """Attention whose norms see every head, so that each tensor-parallel GPU gathers all queries and keys for them.

    Source: SLiME `slime_plugins/models/minimax_m2.py`.
    """

    def shard(self, layout: Layout) -> Shard:
        return Shard(dense=super().shard(layout).dense + self.queries + self.keys)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        return super().saved(layout, selective=selective, skew=skew) + 2 * (self.queries + self.keys)

    def workspace(self, layout: Layout, *, skew: float) -> float:
        return super().workspace(layout, skew=skew) + 2 * (self.queries + self.keys)


class MiniMaxM2(Family):
    model_types = ("minimax_m2",)
    tool_format = "minimax_m2"
    control_tokens = ControlTokens(("]~!b[", "]~b]", "[e~["), ("[e~[",), "]!p~[", ("<think>", "</think>"))
    served_on_cpu = False
    in_miles = False

    def read(self, config: Config) -> Shape:
        config.only("use_qk_norm", True)
        config.only("qk_norm_type", "per_layer")
        config.only("scoring_func", "sigmoid")
        config.only("use_routing_bias", True)
        config.only("shared_intermediate_size", 0)
        layers = config.size("num_hidden_layers")
        config.only("attn_type_list", [1] * layers)
        grouped = grouped_attention(config, usual_head=128)
        attention = WholeNormAttention(grouped.hidden, grouped.heads, grouped.kv_heads, grouped.head_dim)
        mixture = _mixture(config)
        return decoder(
            config,
            [Layer(attention, mixture)] * layers,
            spec=["slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"],
            ffn_hidden_size=mixture.width,  # of no layer, and Megatron wants one
            moe_layer_freq=[1] * layers,
            rotary_percent=config.size("rotary_dim") / attention.head_dim,
            apply_rope_fusion=False,
            attention_softmax_in_fp32=True,
            **expert_flags(mixture),
            **{**attention_flags(attention), "qk_layernorm": True},
            **{**SIGMOID_ROUTER, "moe_router_load_balancing_type": ["none"]},
        )

    def toy(self) -> dict[str, Any]:
        routed = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}
        return toy_decoder("minimax_m2", tie_word_embeddings=False, rotary_dim=16, **routed)


def _mixture(config: Config) -> Experts:
    count, chosen = config.size("num_local_experts"), config.size("num_experts_per_tok")
    if chosen > count:
        raise UserError(f"num_experts_per_tok={chosen} is more than num_local_experts={count}")
    return Experts(config.size("hidden_size"), count, chosen, config.size("intermediate_size"))
