"""One rank of a recipe's training job, built in megatron-core and stepped on packed sequences of sizes alone.

A single process stands for the rank: heads, feed-forward width, vocabulary, experts and layers are those that the rank
holds. What one process can't have: the sequence-parallel split of norms and residuals (here whole, so activations of
tp > 1 are larger than the rank's own), communication, and the Transformer Engine's fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
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

from slime_swe.recipes.base import Architecture, Recipe

RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch, and where its sequences begin and end."""

    tokens_1xT: Tensor
    targets_1xT: Tensor
    positions_1xT: Tensor
    packed: PackedSeqParams

    @classmethod
    def of(cls, lengths: list[int]) -> Batch:
        bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)  # values: the rotation's shapes are made of them
        ids = torch.zeros(3, 1, sum(lengths), dtype=torch.int64, device="meta")
        packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
        return cls(*ids, packed)


def transformer_config(shape: Architecture, recompute: str) -> TransformerConfig:
    """Megatron's configuration of `shape`. Experts get their even share of rows, whatever the router says."""
    experts: dict[str, Any] = {}
    if shape.experts:
        experts = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.expert_ffn,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_dtype": "fp32",
            "moe_expert_capacity_factor": 1.0,
            "moe_pad_expert_input_to_capacity": True,
        }
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.rms_eps,
        qk_layernorm=shape.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
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


class Rank:
    """Model, gradient buffer and optimizer of one rank, each made when asked for, so that each can be weighed."""

    def __init__(self, shape: Architecture, recipe: Recipe) -> None:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(recipe.run.seed)
        self.config = transformer_config(shape, recipe.parallel.recompute)
        self._recipe, self._shape = recipe, shape

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *exc: object) -> None:
        parallel_state.destroy_model_parallel()

    def build_model(self, longest: int) -> None:
        shape = self._shape
        vars(moe_utils).setdefault("te_general_gemm", None)  # 0.16.1 looks for it even without the Transformer Engine
        spec = get_gpt_layer_local_spec(
            num_experts=shape.experts or None, qk_layernorm=shape.qk_norm, normalization="RMSNorm"
        )
        spec.submodules.self_attention.submodules.core_attention = PackedAttention
        model = GPTModel(
            self.config,
            spec,
            vocab_size=shape.vocab,
            max_sequence_length=longest,
            share_embeddings_and_output_weights=shape.tied,
            position_embedding_type="rope",
            rotary_base=int(shape.rope_theta),
        )
        self.model = Float16Module(self.config, model.to(torch.cuda.current_device()))

    def build_gradients(self) -> None:
        config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
        self.model = DistributedDataParallel(self.config, config, self.model)

    def build_optimizer(self) -> None:
        optimizer = self._recipe.optimizer
        config = OptimizerConfig(
            optimizer="adam",
            lr=optimizer.lr,
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            adam_eps=optimizer.eps,
            clip_grad=optimizer.clip_grad,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
        )
        self.optimizer = get_megatron_optimizer(config, [self.model], use_gloo_process_groups=False)

    def decoder(self) -> torch.nn.Module:
        return self.model.module.module.decoder  # type: ignore[no-any-return]

    def forward_backward(self, batch: Batch) -> Tensor:
        """The policy gradient with an advantage of 1 for every token; the loss."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        logits = self.model(batch.tokens_1xT, batch.positions_1xT, None, packed_seq_params=batch.packed)
        logits = logits.float()  # they are already, but on `meta`, whose tensors Megatron takes for no bf16
        loss = -LogProbability.apply(logits[0], batch.targets_1xT[0]).mean()
        del logits
        loss.backward()
        self.model.finish_grad_sync()
        return loss.detach()  # type: ignore[no-any-return]

    def update(self) -> None:
        """A step without clipping: the norm is a number, and there are none."""
        self.optimizer.prepare_grads()
        self.optimizer.step_with_ready_grads()
