"""Qwen3.5 and Qwen3.6, dense and with experts: linear attention in three of four layers, and reasoning.

A checkpoint has a vision tower too, which is not trained and not counted: its text model is in `text_config`.
Megatron's switches are those of SLiME's `scripts/models/qwen3.5-*.sh`, whose values are not taken over.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.hybrid import hybrid_decoder, mixture, toy_hybrid
from slime_swe.recipes.layers import Shape
from slime_swe.recipes.layers.feed_forward import GatedFeedForward

DENSE, MIXTURE = "qwen3_5", "qwen3_5_moe"


class Qwen3_5(Family):
    model_types = (DENSE, MIXTURE)
    tool_format = "qwen3_coder"
    served_on_cpu = False
    packed_experts = True

    def read(self, config: Config) -> Shape:
        text = config.section("text_config")
        text.only("attn_output_gate", True)
        tied = config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
        spec = ["slime_plugins.models.qwen3_5", "get_qwen3_5_spec"]
        if config.text("model_type") == DENSE:
            dense = GatedFeedForward(text.size("hidden_size"), text.size("intermediate_size"))
            return hybrid_decoder(text, dense, tied=tied, spec=spec, width=dense.width)
        sparse = mixture(text)
        return hybrid_decoder(text, sparse, tied=tied, spec=spec, width=sparse.width)

    def toy(self) -> dict[str, Any]:
        mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        toy = toy_hybrid(MIXTURE, shared_expert_intermediate_size=32, **mixture)
        kind, tied = toy.pop("model_type"), toy.pop("tie_word_embeddings")
        del toy["intermediate_size"]
        return {"model_type": kind, "tie_word_embeddings": tied, "text_config": toy}
