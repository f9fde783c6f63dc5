"""Qwen2, Qwen2.5 and Qwen2.5-Coder: dense, with biases before attention.

Megatron's switches are those of SLiME's `scripts/models/qwen2.5-*.sh`, whose values are not taken over.
"""

from __future__ import annotations

from slime_swe.recipes.families import Family

QWEN2 = Family(
    model_type="qwen2",
    qkv_bias=True,
    qk_norm=False,
    tool_format="hermes",
    dp_attention=False,  # SGLang's Qwen2 attention always splits over the whole engine
)
