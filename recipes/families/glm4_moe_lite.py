"""GLM-4.7-Flash: latent attention, and layers like those of its larger kin.

Megatron's switches are those of SLiME's `scripts/models/glm4.7-30B-A3B.sh`, whose values are not taken over. Megatron
makes its rotary positions of YaRN with a factor of 1, which are the plain ones.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.families import Config, Family
from slime_swe.recipes.families.decoder import toy_decoder
from slime_swe.recipes.families.glm4_moe import GLM, TOY_EXPERTS, dense_then_experts
from slime_swe.recipes.layers.latent import LatentAttention
from slime_swe.recipes.shape import Shape


class Glm4MoeLite(Family):
    model_types = ("glm4_moe_lite",)
    tool_format = "glm47"
    control_tokens = GLM
    served_on_cpu = False

    def read(self, config: Config) -> Shape:
        config.only("attention_bias", False)
        config.only("rope_interleave", True)
        config.only("partial_rotary_factor", 1.0, within="rope_parameters")
        heads = config.size("num_attention_heads")
        config.only("num_key_value_heads", heads, stated=True)
        attention = LatentAttention(
            config.size("hidden_size"),
            heads,
            query_rank=config.size("q_lora_rank"),
            cache_rank=config.size("kv_lora_rank"),
            plain_dim=config.size("qk_nope_head_dim"),
            rotary_dim=config.size("qk_rope_head_dim"),
            value_dim=config.size("v_head_dim"),
        )
        return dense_then_experts(
            config,
            attention,
            multi_latent_attention=True,
            num_attention_heads=heads,
            q_lora_rank=attention.query_rank,
            kv_lora_rank=attention.cache_rank,
            qk_head_dim=attention.plain_dim,
            qk_pos_emb_head_dim=attention.rotary_dim,
            v_head_dim=attention.value_dim,
            kv_channels=attention.plain_dim,
            qk_layernorm=True,
            apply_rope_fusion=False,
        )

    def toy(self) -> dict[str, Any]:
        ranks = {"q_lora_rank": 48, "kv_lora_rank": 32}
        heads = {"num_key_value_heads": 4, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32}
        config = toy_decoder("glm4_moe_lite", attention_bias=False, **ranks, **heads, **TOY_EXPERTS)
        del config["head_dim"]
        return config
