"""GLM-4.7-Flash: latent attention, and layers like those of its larger kin.

Megatron's switches are those of SLiME's `scripts/models/glm4.7-30B-A3B.sh`, whose values are not taken over. Megatron
makes its rotary positions of YaRN with a factor of 1, which are the plain ones.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.decoder import latent_attention, latent_flags, toy_decoder
from slime_swe.recipes.families.glm4_moe import GLM, TOY_EXPERTS, dense_then_experts
from slime_swe.recipes.layers import Shape


class Glm4MoeLite(Family):
    model_types = ("glm4_moe_lite",)
    tool_format = "glm47"
    control_tokens = GLM
    served_on_cpu = False

    def read(self, config: Config) -> Shape:
        config.only("partial_rotary_factor", 1.0, within="rope_parameters")
        attention = latent_attention(config, config.size("q_lora_rank"))
        return dense_then_experts(config, attention, **latent_flags(attention))

    def toy(self) -> dict[str, Any]:
        ranks = {"q_lora_rank": 48, "kv_lora_rank": 32}
        heads = {"num_key_value_heads": 4, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32}
        config = toy_decoder("glm4_moe_lite", attention_bias=False, **ranks, **heads, **TOY_EXPERTS)
        del config["head_dim"]
        return config
