"""DeepSeek-V3, R1 and V3.1, and Moonlight: latent attention, first layers that are dense, and groups of experts.

Megatron's switches are those of SLiME's `scripts/models/deepseek-v3.sh`, whose values are not taken over, but that its
router has groups only where there are several. The layer that predicts further tokens (`num_nextn_predict_layers`) is
neither trained nor counted. DeepSeek publishes weights in FP8, which SLiME's `tools/fp8_cast_bf16.py` makes bfloat16.

Each version writes tool calls in another way, so that the family's are shell commands in a block. Control tokens are
DeepSeek's: Moonlight has others, and a tokenizer that is code of its own, so that it needs a `tokenizer.json`.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, ControlTokens, Family
from slime_swe.recipes.families.decoder import ROTARY, latent_attention, latent_flags, toy_decoder, unscaled
from slime_swe.recipes.families.glm4_moe import TOY_EXPERTS, dense_then_experts
from slime_swe.recipes.layers import Shape

YARN = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
"""What Megatron has no flags for. Source: Megatron-LM `core/transformer/transformer_config.py`, the defaults of
`MLATransformerConfig`, which SLiME leaves as they are."""
_END = "<｜end▁of▁sentence｜>"


class DeepseekV3(Family):
    model_types = ("deepseek_v3",)
    tool_format = "bash_block"
    template = "deepseek_v3"
    control_tokens = ControlTokens(
        ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", _END),
        ends=(_END,),
        pad=_END,
        words=(),
    )
    served_on_cpu = False

    def read(self, config: Config) -> Shape:
        config.only("moe_layer_freq", 1)
        config.only("scoring_func", "sigmoid")
        attention = latent_attention(config, config.size_or_null("q_lora_rank") or 0)
        return dense_then_experts(
            config,
            attention,
            grouped=True,
            scaling=_scaling,
            attention_softmax_in_fp32=True,
            **latent_flags(attention),
        )

    def toy(self) -> dict[str, Any]:
        ranks = {"q_lora_rank": 48, "kv_lora_rank": 32}
        heads = {"num_key_value_heads": 4, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32}
        chosen = {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2}
        yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}
        config = toy_decoder("deepseek_v3", **ranks, **heads, **{**TOY_EXPERTS, **chosen}, rope_scaling=yarn)
        del config["head_dim"]
        return config


def _scaling(config: Config) -> dict[str, Any]:
    """Return the flags of positions. Megatron makes latent attention's by YaRN; with its own factor of 1 they are
    plain."""
    for key in ROTARY:
        section = config.section(key) if config.has(key) else None
        if section and section.text("rope_type", section.text("type", "default")) == "yarn":
            for name, value in YARN.items():
                section.only(name, value, stated=True)
            return {
                "rotary_scaling_factor": section.number("factor"),
                "mscale": section.number("mscale"),
                "mscale_all_dim": section.number("mscale_all_dim"),
            }
    return unscaled(config)
