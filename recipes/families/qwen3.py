"""Qwen3, dense: queries and keys have norms, and nothing has a bias.

Megatron's switches are those of SLiME's `scripts/models/qwen3-*.sh`, whose values are not taken over.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.decoder import dense_decoder, grouped_attention, toy_decoder
from slime_swe.recipes.layers import Shape


class Qwen3(Family):
    model_types = ("qwen3",)
    tool_format = "hermes"
    adapters = True

    def read(self, config: Config) -> Shape:
        config.only("attention_bias", False)
        return dense_decoder(config, grouped_attention(config, usual_head=128, qk_norm=True))

    def toy(self) -> dict[str, Any]:
        return toy_decoder("qwen3")
