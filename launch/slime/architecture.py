"""`Architecture` -> Megatron's names for a model's shape, and the switches of its family."""

from __future__ import annotations

from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.architecture import Architecture
from slime_swe.recipes.families import load_family

PADDING = 128  # rows of the embedding table that one GPU's share is padded to at most


def model_section(architecture: Architecture, tp: int = 1) -> dict[str, Any]:
    """Attributes that Megatron builds the model from, on `tp` tensor-parallel GPUs."""
    theta = architecture.rope_theta
    if theta != int(theta):
        raise UserError(
            f"model.architecture.rope_theta={theta} is not whole, and Megatron's --rotary-base takes no other"
        )
    experts = {
        "num_experts": architecture.experts,
        "moe_router_topk": architecture.experts_per_token,
        "moe_ffn_hidden_size": architecture.expert_ffn,
    }
    return {
        "num_layers": architecture.layers,
        "hidden_size": architecture.hidden,
        "ffn_hidden_size": architecture.ffn,
        "num_attention_heads": architecture.heads,
        "group_query_attention": True,
        "num_query_groups": architecture.kv_heads,
        "kv_channels": architecture.head_dim,
        "vocab_size": architecture.vocab,
        "make_vocab_size_divisible_by": vocabulary_unit(architecture.vocab, tp),
        "untie_embeddings_and_output_weights": not architecture.tied,
        "position_embedding_type": "rope",
        "rotary_base": int(theta),
        "normalization": "RMSNorm",
        "layernorm_epsilon": architecture.rms_eps,
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": architecture.qkv_bias,
        "qk_layernorm": architecture.qk_norm,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        **(experts if architecture.experts else {}),
        **load_family(architecture.family).flags,
    }


def vocabulary_unit(vocab: int, tp: int) -> int:
    """Megatron pads the vocabulary to a multiple of this times `tp`: the largest that adds no rows, if there is one.

    A row that pads has a logit, which takes part in every softmax, and the server has no such row.
    """
    unit = PADDING
    while unit > 1 and vocab % (unit * tp):
        unit //= 2
    return unit
