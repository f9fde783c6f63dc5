"""Qwen3-Next and Qwen3-Coder-Next: linear attention in three of four layers, experts in all.

Megatron's switches are those of SLiME's `scripts/models/qwen3-next-80B-A3B.sh`, whose values are not taken over.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.hybrid import hybrid_decoder, mixture, toy_hybrid
from slime_swe.recipes.layers import Shape


class Qwen3Next(Family):
    model_types = ("qwen3_next",)
    tool_format = "hermes"
    served_on_cpu = False

    def read(self, config: Config) -> Shape:
        config.only("use_sliding_window", False)
        config.only("norm_topk_prob", True, stated=True)
        return hybrid_decoder(
            config,
            mixture(config),
            tied=config.flag("tie_word_embeddings", False),
            spec=["slime_plugins.models.qwen3_next", "get_qwen3_next_spec"],
            width=config.size("intermediate_size"),
        )

    def toy(self) -> dict[str, Any]:
        return toy_hybrid(
            "qwen3_next",
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            norm_topk_prob=True,
        )
