"""One rank of a recipe's training job, built in megatron-core and stepped on packed sequences of sizes alone.

A single process stands for the rank: heads, feed-forward width, vocabulary, experts and layers are those that the rank
holds. What one process can't have: the sequence-parallel split of norms and residuals (here whole, so activations of
tp > 1 are larger than the rank's own), communication, and the Transformer Engine's fused kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from benchmarks.megatron_device import meta_device
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.layers import Shape

RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def transformer_config(shape: Shape, recompute: str) -> TransformerConfig:
    """Megatron's configuration of `shape`. Experts get their even share of rows, whatever the router says."""
    flags, experts = shape.megatron, {}
    if shape.experts:
        experts = {
            "num_moe_experts": flags["num_experts"],
            "moe_router_topk": flags["moe_router_topk"],
            "moe_ffn_hidden_size": flags["moe_ffn_hidden_size"],
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_dtype": "fp32",
            "moe_expert_capacity_factor": 1.0,
            "moe_pad_expert_input_to_capacity": True,
        }
    return TransformerConfig(
        num_layers=flags["num_layers"],
        hidden_size=flags["hidden_size"],
        ffn_hidden_size=flags["ffn_hidden_size"],
        num_attention_heads=flags["num_attention_heads"],
        num_query_groups=flags["num_query_groups"],
        kv_channels=flags["kv_channels"],
        normalization="RMSNorm",
        layernorm_epsilon=flags["layernorm_epsilon"],
        qk_layernorm=flags["qk_layernorm"],
        add_bias_linear=False,
        add_qkv_bias=flags["add_qkv_bias"],
        gated_linear_unit=True,
        activation_func=functional.silu,
        bias_activation_fusion=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,  # wants Apex or the Transformer Engine
        persist_layer_norm=False,
        **experts,
        **RECOMPUTE[recompute],
    )


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal flash attention within each of the packed sequences; Megatron's own takes none without other packages."""

    def __init__(self, config: TransformerConfig, *args: Any, **options: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query_TxQxD: Tensor, key_TxKxD: Tensor, value_TxKxD: Tensor, mask: None, *args: Any, **options: Any
    ) -> Tensor:
        packed: PackedSeqParams = options["packed_seq_params"]
        bounds, longest = packed.cu_seqlens_q, packed.max_seqlen_q
        attend, given = torch.ops.aten._flash_attention_forward, (query_TxQxD, key_TxKxD, value_TxKxD)
        return attend(*given, bounds, bounds, longest, longest, 0.0, True, False)[0].flatten(1)


class LogProbability(torch.autograd.Function):
    """Of each target, from fp32 logits. As in SLiME, a second fp32 copy of these becomes the softmax, and then the
    gradient, in place; Megatron's own cross-entropy would overwrite the logits, and so take half as much."""

    @staticmethod
    def forward(ctx: Any, logits_TxV: Tensor, target_T: Tensor) -> Tensor:
        shifted = logits_TxV - logits_TxV.max(dim=-1, keepdim=True).values
        found = shifted.gather(1, target_T[:, None])[:, 0]
        total = shifted.exp_().sum(dim=-1, keepdim=True)
        ctx.save_for_backward(shifted.div_(total), target_T)
        return found - total[:, 0].log()

    @staticmethod
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor, None]:
        softmax_TxV, target_T = ctx.saved_tensors
        gradient = softmax_TxV.neg_()
        gradient.scatter_add_(1, target_T[:, None], torch.ones_like(target_T[:, None], dtype=gradient.dtype))
        return gradient.mul_(gradient_T[:, None]), None


def weigh(shape: Shape, recipe: Recipe, lengths: list[int]) -> dict[str, float]:
    """Bytes that each part of the rank adds, what the forward pass over one packed micro-batch keeps, the peak beyond
    it, and that of the update."""
    longest, tokens = max(lengths), sum(lengths)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)  # real: of its values the rotation's shapes are made
    packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest)
    with meta_device() as meter:
        ids_1xT = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        start = meter.now
        config = transformer_config(shape, recipe.parallel.recompute)
        model: Any = _model(shape, config, longest)
        weights = meter.now - start
        reduced = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
        model = DistributedDataParallel(config, reduced, model)
        gradients = meter.now - start - weights
        precision = {"bf16": True, "params_dtype": torch.bfloat16, "use_distributed_optimizer": True}
        adam = OptimizerConfig(optimizer="adam", lr=recipe.optimizer.lr, **precision)
        optimizer = get_megatron_optimizer(adam, [model], use_gloo_process_groups=False)

        def forward_backward() -> None:
            """The policy gradient with an advantage of 1 for every token."""
            model.zero_grad_buffer()
            optimizer.zero_grad()
            logits = model(ids_1xT, ids_1xT, None, packed_seq_params=packed)
            logits = logits.float()  # they are already, but on `meta`, whose tensors Megatron takes for no bf16
            loss = -LogProbability.apply(logits[0], ids_1xT[0]).mean()
            del logits
            loss.backward()
            model.finish_grad_sync()

        def update() -> None:
            """Without clipping: the norm is a number, and there are none."""
            optimizer.prepare_grads()
            optimizer.step_with_ready_grads()

        forward_backward()
        update()  # makes the optimizer's moments
        lasting, kept = meter.now, []
        model.module.module.decoder.register_forward_hook(lambda *_: kept.append(meter.now))
        meter.reset()
        forward_backward()
        backward = meter.peak
        meter.reset()
        update()
        parallel_state.destroy_model_parallel()
    return {
        "weights": weights,
        "gradients": gradients,
        "lasting": lasting,
        "activations": kept[0] - lasting,
        "loss_or_backward": backward - kept[0],
        "update": meter.peak - lasting,
        "peak": max(backward, meter.peak),
    }


def _model(shape: Shape, config: TransformerConfig, longest: int) -> Float16Module:
    vars(moe_utils).setdefault("te_general_gemm", None)  # 0.16.1 looks for it even without the Transformer Engine
    spec = get_gpt_layer_local_spec(
        num_experts=shape.experts or None, qk_layernorm=shape.megatron["qk_layernorm"], normalization="RMSNorm"
    )
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    model = GPTModel(
        config,
        spec,
        vocab_size=shape.vocab,
        max_sequence_length=longest,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope",
        rotary_base=shape.megatron["rotary_base"],
    )
    return Float16Module(config, model.to(torch.cuda.current_device()))
