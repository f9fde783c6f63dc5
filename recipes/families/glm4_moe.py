"""GLM-4.5, 4.6 and 4.7: first layers are dense, the others have experts, of which one sees every token.

Megatron's switches are those of SLiME's `scripts/models/glm4.5-*.sh`, whose values are not taken over. The layer that
predicts further tokens (`num_nextn_predict_layers`) is neither trained nor counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.families import Config, ControlTokens, Family
from slime_swe.recipes.families.decoder import attention_flags, decoder, expert_flags, grouped_attention, toy_decoder
from slime_swe.recipes.layers import Layer, Part, Shape
from slime_swe.recipes.layers.feed_forward import Experts, GatedFeedForward

SIGMOID_ROUTER: Mapping[str, Any] = {
    "moe_router_score_function": "sigmoid",
    "moe_router_pre_softmax": True,
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.0,
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": ["seq_aux_loss"],
    "moe_aux_loss_coeff": [0.0],
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}
"""The checkpoint's bias of each expert stays as it is: the policy that samples has the same."""
GLM = ControlTokens(
    ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    ends=("<|user|>", "<|observation|>"),
    pad="<|endoftext|>",
)


class Glm4Moe(Family):
    model_types = ("glm4_moe",)
    tool_format = "glm47"
    control_tokens = GLM

    def read(self, config: Config) -> Shape:
        config.only("attention_bias", True, stated=True)
        attention = grouped_attention(config, qkv_bias=True, qk_norm=config.flag("use_qk_norm", False))
        rotary = config.number("partial_rotary_factor", 0.5, within="rope_parameters")
        return dense_then_experts(config, attention, rotary_percent=rotary, **attention_flags(attention))

    def toy(self) -> dict[str, Any]:
        return toy_decoder("glm4_moe", attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, **TOY_EXPERTS)


def dense_then_experts(config: Config, attention: Part, *, grouped: bool = False, **more: Any) -> Shape:
    """Read a decoder with the same attention in every layer; the first `first_k_dense_replace` layers are dense.

    grouped: the router may choose some groups of experts first. more: of `decoder`, the attention's flags among them.
    """
    config.only("norm_topk_prob", True)
    config.only("topk_method", "noaux_tc")
    layers, dense = config.size("num_hidden_layers"), config.size("first_k_dense_replace", least=0)
    if dense >= layers:
        raise UserError(f"first_k_dense_replace={dense} leaves none of {layers} layers to experts")
    feed_forward, mixture = GatedFeedForward(attention.hidden, config.size("intermediate_size")), _mixture(config)
    groups = _group_flags(config, mixture) if grouped else _no_groups(config)
    return decoder(
        config,
        [Layer(attention, feed_forward)] * dense + [Layer(attention, mixture)] * (layers - dense),
        ffn_hidden_size=feed_forward.width,
        moe_layer_freq=[0] * dense + [1] * (layers - dense),
        moe_shared_expert_intermediate_size=mixture.shared_width,
        moe_router_topk_scaling_factor=config.number("routed_scaling_factor"),
        **groups,
        **more,
        **expert_flags(mixture),
        **SIGMOID_ROUTER,
    )


def _mixture(config: Config) -> Experts:
    count, chosen = config.size("n_routed_experts"), config.size("num_experts_per_tok")
    if chosen > count:
        raise UserError(f"num_experts_per_tok={chosen} is more than n_routed_experts={count}")
    width = config.size("moe_intermediate_size")
    shared = width * config.size("n_shared_experts")
    return Experts(config.size("hidden_size"), count, chosen, width, shared_width=shared)


def _no_groups(config: Config) -> dict[str, Any]:
    for key in ("n_group", "topk_group"):
        config.only(key, 1)
    return {}


def _group_flags(config: Config, mixture: Experts) -> dict[str, Any]:
    """Return the flags of groups of experts. A token goes to the best experts of `topk_group` of `n_group` groups. The
    score of a group is the sum of its two best experts' in Transformers, and of its best `topk / topk_group` in
    Megatron-LM (`moe_utils.group_limited_topk`)."""
    groups, chosen = config.size("n_group"), config.size("topk_group")
    if chosen > groups or mixture.experts % groups:
        raise UserError(f"n_group={groups} must divide n_routed_experts={mixture.experts}, topk_group be no more")
    if groups == 1:
        return {}
    if mixture.chosen // chosen != 2:
        raise UserError(
            f"num_experts_per_tok={mixture.chosen} is not twice topk_group={chosen}, and Megatron scores a group of "
            "experts by as many as a token has of each chosen group, where the model takes two"
        )
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}


TOY_EXPERTS: Mapping[str, Any] = {
    "tie_word_embeddings": False,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
