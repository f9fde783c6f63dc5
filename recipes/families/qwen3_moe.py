"""Qwen3 with experts in every layer: Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B.

Megatron's switches are those of SLiME's `scripts/models/qwen3-*-A*.sh`, whose values are not taken over. The router's
softmax is over the chosen experts, which normalises their weights, as `norm_topk_prob` asks.
"""

from __future__ import annotations

from slime_swe.recipes.families import Family

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    qkv_bias=False,
    qk_norm=True,
    tool_format="hermes",
    expert_keys={
        "experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_ffn": "moe_intermediate_size",
    },
    optional={"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    required={"norm_topk_prob": True},
    flags={
        "moe_layer_freq": 1,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": ["none"],
        "moe_aux_loss_coeff": [0.0],
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
    },
)
