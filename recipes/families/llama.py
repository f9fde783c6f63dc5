"""Llama 2, 3, 3.1 and 3.3, and other models of that shape: dense, without biases and without norms of queries and keys.

Megatron's switches are those of SLiME's `scripts/models/llama3.1-8B-Instruct.sh`, whose values are not taken over. The
scaling of rotary positions is Llama 3.1's alone: SLiME gives Megatron no factor, whose own is 8. So Llama 3.2, which
has 32, would be trained with other positions than it is served with; SLiME's script for it states the factor by a flag
that only latent attention reads.

Tool format and control tokens are those of Llama 3.1 and later. Others' recipes name their tool format; `bash_block` is
for any.
"""

from __future__ import annotations

from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.families import Config, ControlTokens, Family
from slime_swe.recipes.families.decoder import ROTARY, dense_decoder, grouped_attention, toy_decoder, unscaled
from slime_swe.recipes.layers import Shape

SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Source: Megatron-LM `core/models/common/embeddings/rotary_pos_embedding.py`, the defaults of `_apply_scaling`."""


class Llama(Family):
    model_types = ("llama",)
    tool_format = "llama3"
    template = "llama3"
    control_tokens = ControlTokens(
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        ends=("<|eot_id|>",),
        pad="<|finetune_right_pad_id|>",
        words=(),
    )
    dp_attention = False  # SGLang's Llama attention always splits over the whole engine

    def read(self, config: Config) -> Shape:
        config.only("attention_bias", False)
        config.only("mlp_bias", False)
        return dense_decoder(config, grouped_attention(config), scaling=_scaling)

    def toy(self) -> dict[str, Any]:
        return toy_decoder("llama", rope_theta=500000, rope_scaling={"rope_type": "llama3", **SCALING})


def _scaling(config: Config) -> dict[str, Any]:
    """Return Megatron's switch for what `SCALING` says."""
    for key in ROTARY:
        if config.has(key) and config.section(key).text("rope_type", "default") == "llama3":
            section = config.section(key)
            factor = section.number("factor")
            if factor != SCALING["factor"]:
                raise UserError(
                    f"{key}.factor is {factor}, and only 8 can be trained: "
                    "SLiME gives Megatron no factor, and its own is 8"
                )
            for name, value in SCALING.items():
                section.only(name, value, stated=True)
            return {"use_rope_scaling": True}
    return unscaled(config)
