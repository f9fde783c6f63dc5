"""Megatron's layers without Transformer Engine.

For `--spec slime_swe.launch.slime_cpu.layer_spec layer_spec`.

SLiME packs sequences of different lengths into one row (`thd` layout), and converts weights from and to Hugging Face
format by the parameter names of Transformer Engine's fused layers. Megatron's own local spec does neither.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor
from torch.nn import functional

_COPY = "_set_main_param_and_optimizer_states"


def layer_spec(args: Any, config: Any, vp_stage: int | None) -> ModuleSpec:
    """One decoder layer, as `--spec` wants it: norms live in the linear layers that read them.

    SLiME asks for it in the trainer's process before a checkpoint is loaded, so that what loading wants is done here.
    """
    let_adam_load()
    spec = get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization=args.normalization)
    layer = spec.submodules
    layer.input_layernorm = IdentityOp
    layer.pre_mlp_layernorm = IdentityOp
    layer.self_attention.submodules.linear_qkv = NormedColumnParallelLinear
    layer.self_attention.submodules.core_attention = PackedAttention
    layer.mlp.submodules.linear_fc1 = NormedColumnParallelLinear
    return spec


class NormedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """RMS norm and linear layer in one, with the parameter name `layer_norm_weight` of Transformer Engine's."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        if config.normalization != "RMSNorm":
            raise ValueError(f"normalization={config.normalization!r}: this layer spec has RMSNorm alone")
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.epsilon = config.layernorm_epsilon

    def forward(self, input_: Tensor, *args: Any, **options: Any) -> Any:
        normed = functional.rms_norm(input_.float(), (input_.size(-1),), self.layer_norm_weight.float(), self.epsilon)
        return super().forward(normed.to(input_.dtype), *args, **options)


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention over packed sequences, each on its own; no dropout, no context parallelism."""

    def __init__(
        self, config: Any, layer_number: int, *args: Any, softmax_scale: float | None = None, **options: Any
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self,
        query_TxQxD: Tensor,
        key_TxKxD: Tensor,
        value_TxKxD: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        packed_seq_params: PackedSeqParams,
        **options: Any,
    ) -> Tensor:
        """Attend within each of the sequences that `cu_seqlens_q` bounds; returns T x (Q D)."""
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        outputs = [
            self._attend(query_TxQxD[start:end], key_TxKxD[start:end], value_TxKxD[start:end])
            for start, end in pairwise(bounds)
        ]
        return torch.cat(outputs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = query.size(1) != key.size(1)
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped
        )
        return output.squeeze(0).transpose(0, 1).flatten(1)


def let_adam_load() -> None:
    """Let Megatron's distributed optimizer load a checkpoint of float32 weights into PyTorch's Adam.

    Copy a parameter and its moments without gradients, and let the step number be, which is loaded before them.

    Half-precision weights have copies that need no gradients; these are the model's own parameters. Transformer
    Engine's Adam keeps no step number with each parameter, and a checkpoint holds none.
    """
    optimizer: Any = DistributedOptimizer
    original = getattr(optimizer, _COPY)

    @functools.wraps(original)
    def copy(self: Any, parameter: Tensor, tensors: Mapping[str, Tensor]) -> None:
        group, place = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        with torch.no_grad():
            original(self, parameter, {"step": state["step"], **tensors})

    setattr(optimizer, _COPY, copy)
