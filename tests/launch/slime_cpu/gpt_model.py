"""A step of megatron-core's GPT model on the stand-in for Transformer Engine: two ranks of gloo beside one.

    PYTHONPATH=launch/slime_cpu/packages:src python tests/launch/slime_cpu/gpt_model.py FOLDER

The two have tensor and sequence parallelism, and each has half of the experts. One rank is also compared with
Megatron's own layers, which use no Transformer Engine. Prints a line of JSON: what is compared -> figure -> how far
they are apart.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime_swe.launch.slime_cpu.shims import give_splits_to_host, without_cuda

sys.path.insert(0, str(Path(__file__).parent))
from forked import run

without_cuda()
give_splits_to_host()
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

VOCABULARY, LENGTH, ROWS = 96, 32, 2  # tokens of a row
EXPERTS = 4
SHAPE: Mapping[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "qk_layernorm": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bias_dropout_fusion": False,
    "use_cpu_initialization": True,
}
MIXTURE: Mapping[str, Any] = {
    "moe_ffn_hidden_size": 48,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "none",
}
ON_STAND_IN: Mapping[str, Any] = {"apply_rope_fusion": True}
GROUPED: Mapping[str, Any] = {"moe_grouped_gemm": True, "moe_permute_fusion": True}
# What Megatron's own layers call otherwise than Transformer Engine's.
OTHERWISE = {
    r"input_layernorm\.weight": "self_attention.linear_qkv.layer_norm_weight",
    r"pre_mlp_layernorm\.weight": "mlp.linear_fc1.layer_norm_weight",
    r"local_experts\.(\d+)\.(\w+)\.weight": r"\2.weight\1",
}


def step(rank: int, ranks: int, experts: int, local: bool) -> dict[str, Any]:
    """One optimizer step: log-probabilities of the labels before it and after it, loss, gradient norm.

    local: by Megatron's own layers.
    """
    layout = {"tensor_model_parallel_size": ranks, "expert_model_parallel_size": ranks if experts else 1}
    layout["expert_tensor_parallel_size"] = 1
    parallel_state.initialize_model_parallel(**layout)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        **SHAPE,
        **({"num_moe_experts": experts, **MIXTURE} if experts else {}),
        **({} if local else {**ON_STAND_IN, **(GROUPED if experts else {})}),
        **layout,
        sequence_parallel=ranks > 1,
    )
    rotary = {"position_embedding_type": "rope", "share_embeddings_and_output_weights": False}
    model = GPTModel(config, layers(experts, local), VOCABULARY, LENGTH, **rotary)
    fill(model, rank, ranks)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    rates = OptimizerConfig(optimizer="adam", lr=1e-2, adam_eps=1e-3, weight_decay=0.0, clip_grad=0.5)
    optimizer = get_megatron_optimizer(rates, [wrapped])
    before = log_probs(wrapped)
    loss = -before.mean()
    loss.backward()
    finalize_model_grads([wrapped])
    _, norm, _ = optimizer.step()
    return {"before": before.detach(), "loss": loss.item(), "norm": float(norm), "after": log_probs(wrapped).detach()}


def layers(experts: int, local: bool) -> Any:
    if local:
        return get_gpt_layer_local_spec(experts or None, qk_layernorm=True, normalization="RMSNorm")
    return get_gpt_layer_with_transformer_engine_spec(experts or None, moe_grouped_gemm=True, qk_layernorm=True)


def log_probs(model: Any) -> Tensor:
    """Of each label, ROWS x LENGTH."""
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=draw)
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    places = torch.arange(LENGTH).expand(ROWS, -1)
    found: Tensor = model(tokens[:, :-1], places, causal, labels=tokens[:, 1:])
    return -found


@torch.no_grad()
def fill(model: torch.nn.Module, rank: int, ranks: int) -> None:
    """The same weights whatever the ranks are: each takes its share."""
    for own, parameter in model.named_parameters():
        name = own
        for pattern, other in OTHERWISE.items():
            name = re.sub(pattern, other, name)
        if ".experts." in name:  # numbered from 0 on each rank
            stem, number = name.rsplit("weight", 1)
            parameter.copy_(drawn(f"{stem}weight{int(number) + rank * EXPERTS // ranks}", list(parameter.shape)))
            continue
        axis = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        whole = [size * ranks if at == axis else size for at, size in enumerate(parameter.shape)]
        value = drawn(name, whole)
        if axis is not None:  # of a gate and what it gates each rank has its share of both
            halves = value.chunk(2, axis) if "linear_fc1" in name else (value,)
            value = torch.cat([half.chunk(ranks, axis)[rank] for half in halves], axis)
        parameter.copy_(value)


def drawn(name: str, shape: list[int]) -> Tensor:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return 1 + 0.2 * value if "norm" in name else 0.1 * value


def gaps(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Of log-probabilities and loss the largest difference, of the norm its share."""
    found = {key: (one[key] - other[key]).abs().max().item() for key in ("before", "after")}
    return {**found, "loss": abs(one["loss"] - other["loss"]), "norm": abs(1 - one["norm"] / other["norm"])}


def main(folder: Path) -> None:
    found: dict[str, dict[str, float]] = {}
    for name, experts in (("dense", 0), ("experts", EXPERTS)):
        (alone,) = run(step, 1, folder / name, 1, experts, False)
        assert math.isfinite(alone["norm"]) and (alone["before"] - alone["after"]).abs().max() > 0.1, alone
        for what, ranks, local in (("two ranks", 2, False), ("Megatron's own layers", 1, True)):
            others = run(step, ranks, folder / f"{name} {what}", ranks, experts, local)
            found[f"{name}: {what}"] = {key: max(gaps(other, alone)[key] for other in others) for key in alone}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
