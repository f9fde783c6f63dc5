"""Qwen3, dense: queries and keys have norms, and nothing has a bias.

Megatron's switches are those of SLiME's `scripts/models/qwen3-*.sh`, whose values are not taken over.
"""

from __future__ import annotations

from slime_swe.recipes.families import Family

QWEN3 = Family(
    model_type="qwen3",
    qkv_bias=False,
    qk_norm=True,
    tool_format="hermes",
    optional={"attention_bias": False},
)
