"""Qwen2, Qwen2.5 and Qwen2.5-Coder: dense, with biases before attention.

All have Hermes' tool calls in their template. Coder models write others, so their recipes name `qwen25_coder`.

Megatron's switches are those of SLiME's `scripts/models/qwen2.5-*.sh`, whose values are not taken over.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.decoder import dense_decoder, grouped_attention, toy_decoder
from slime_swe.recipes.layers import Shape


class Qwen2(Family):
    model_types = ("qwen2",)
    tool_format = "hermes"
    adapters = True
    dp_attention = False  # SGLang's Qwen2 attention always splits over the whole engine

    def read(self, config: Config) -> Shape:
        return dense_decoder(config, grouped_attention(config, qkv_bias=True))

    def toy(self) -> dict[str, Any]:
        return toy_decoder("qwen2")
