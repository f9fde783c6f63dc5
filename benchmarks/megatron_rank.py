"""One rank of a recipe's training job, built in megatron-core with random weights and stepped on packed sequences.

A single process stands for the rank: heads, feed-forward width, vocabulary, experts and layers are those that the rank
holds. What one process can't have: the sequence-parallel split of norms and residuals (here whole, so activations of
tp > 1 are larger than the rank's own), communication, and the Transformer Engine's fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from benchmarks.log_probability import LogProbability
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
    def random(cls, vocab: int, lengths: list[int], kind: str) -> Batch:
        bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        ids = torch.randint(vocab, (2, 1, sum(lengths)), generator=torch.Generator().manual_seed(0))
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        bounds = bounds.to("cpu" if kind == "meta" else kind)  # of its values the rotation's shapes are made
        packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
        return cls(ids[0].to(kind), ids[1].to(kind), positions.to(kind), packed)


def transformer_config(shape: Architecture, recompute: str, static: bool) -> TransformerConfig:
    """Megatron's configuration of `shape`. `static`: experts get their even share of rows, whatever the router says."""
    experts: dict[str, Any] = {}
    if shape.experts:
        experts = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.expert_ffn,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_dtype": "fp32",
            "moe_expert_capacity_factor": 1.0 if static else None,
            "moe_pad_expert_input_to_capacity": static,
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
        attend = _attend_each if query_TxQxD.device.type == "cpu" else _attend_all
        return attend(query_TxQxD, key_TxKxD, value_TxKxD, packed).flatten(1)


def _attend_all(query: Tensor, key: Tensor, value: Tensor, packed: PackedSeqParams) -> Tensor:
    """The kernel that PyTorch brings along."""
    bounds, longest = packed.cu_seqlens_q, packed.max_seqlen_q
    call = torch.ops.aten._flash_attention_forward
    return call(query, key, value, bounds, bounds, longest, longest, 0.0, True, False)[0]  # type: ignore[no-any-return]


def _attend_each(query: Tensor, key: Tensor, value: Tensor, packed: PackedSeqParams) -> Tensor:
    outputs = []
    for start, end in pairwise(packed.cu_seqlens_q.tolist()):
        parts = (part[start:end].transpose(0, 1)[None] for part in (query, key, value))
        outputs.append(functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True))
    return torch.cat([output[0].transpose(0, 1) for output in outputs])


class Rank:
    """Model, gradient buffer and optimizer of one rank, each made when asked for, so that each can be weighed."""

    def __init__(self, shape: Architecture, recipe: Recipe, kind: str) -> None:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(recipe.run.seed)
        self.config = transformer_config(shape, recipe.parallel.recompute, static=kind == "meta")
        self._recipe, self._shape, self._kind = recipe, shape, kind

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
        if self._kind == "cuda":
            _fuse(self.optimizer)

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
        if self._kind == "meta":  # no norm: it is a number
            self.optimizer.prepare_grads()
            self.optimizer.step_with_ready_grads()
        else:
            self.optimizer.step()


def _fuse(optimizer: Any) -> None:
    """One kernel for PyTorch's AdamW, which otherwise makes copies of what it updates; Apex's and the Transformer
    Engine's are fused anyway."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part.optimizer, torch.optim.Adam):
            for group in part.optimizer.param_groups:
                group |= {"fused": True, "foreach": False}
