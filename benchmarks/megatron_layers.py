"""What one layer keeps for its backward pass on a GPU, in megatron-core with Transformer Engine, beside the planner.

Two and six layers of a rank's shape (as in `megatron_memory`) run forward and backward over one packed micro-batch of
`parallel.max_tokens_per_gpu` tokens in bf16; the difference is four layers'. Memory is what PyTorch's allocator holds
after the forward pass; the speed counts the planner's operations of a layer, three times for both passes, four with
full recomputation.

    python -m benchmarks.megatron_layers [--recipes NAME,NAME] [--json] [--check] [--save]

Wants a GPU, Transformer Engine and Megatron-LM on PYTHONPATH. Not covered: mixtures of experts, whose dispatcher keeps
tensors of the step before; communication; the backward pass's own memory.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from itertools import product
from typing import Any

import torch

from benchmarks.command import Figures, run
from benchmarks.megatron_memory import rank_model, sequence_lengths
from benchmarks.megatron_rank import RECOMPUTE, transformer_config
from slime_swe.errors import UserError
from slime_swe.recipes.layers import ONE_GPU, Layer, Shape
from slime_swe.recipes.registry import load_recipe

DENSE = "qwen25_coder_1_5b,qwen3_4b_instruct"
FEW, MANY = 2, 6  # layers
STEPS = 4  # the first of which tunes kernels
TOLERANCE = 0.1  # of the planner's bytes
ADDRESS = "tcp://127.0.0.1:29511"


async def measure(recipes: str) -> Figures:
    """Bytes a token and layer by recipe and recomputation, planned and measured, how far apart they are as a share of
    the planned, and TFLOP/s."""
    if not torch.cuda.is_available():
        raise UserError("this benchmark measures a GPU, and PyTorch finds none on this machine")
    from megatron.core import parallel_state, tensor_parallel

    torch.distributed.init_process_group("nccl", init_method=ADDRESS, rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    figures: Figures = {}
    for name, recompute in product(recipes.split(","), RECOMPUTE):
        recipe = load_recipe(name)
        lengths = sequence_lengths(recipe.parallel.max_tokens_per_gpu)
        shape = rank_model(recipe.model, recipe.parallel).shape
        (layer,) = shape.kinds
        (few, short), (many, long) = (weigh(shape, recompute, layers, lengths) for layers in (FEW, MANY))
        planned, measured = layer.saved(ONE_GPU, recompute=recompute, skew=1.0), (many - few) / (MANY - FEW)
        passes = 4 if recompute == "full" else 3
        figures |= {
            f"{name}_{recompute}_planned_bytes": planned,
            f"{name}_{recompute}_bytes": measured / sum(lengths),
            f"{name}_{recompute}_off": abs(measured / sum(lengths) / planned - 1),
            f"{name}_{recompute}_tflops": passes * operations(layer, lengths) * (MANY - FEW) / (long - short) / 1e12,
        }
    torch.distributed.destroy_process_group()
    return figures


def weigh(shape: Shape, recompute: str, layers: int, lengths: list[int]) -> tuple[float, float]:
    """Bytes that the forward pass of a stack of layers keeps, and the seconds of its fastest step."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.transformer_block import TransformerBlock

    config = dataclasses.replace(transformer_config(shape, recompute), num_layers=layers)
    spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.megatron["qk_layernorm"])
    model: Any = TransformerBlock(config, spec, pre_process=True, post_process=False).cuda().bfloat16()
    rotary = RotaryEmbedding(config.kv_channels, rotary_percent=1.0, rotary_base=shape.megatron["rotary_base"])
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda()
    packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
    angles = rotary(max(lengths), packed_seq=True)
    size = (sum(lengths), 1, config.hidden_size)
    hidden = torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    kept, seconds = 0, []
    for _ in range(STEPS):
        model.zero_grad(set_to_none=True)
        hidden.grad = None
        torch.cuda.synchronize()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        out = model(hidden, None, rotary_pos_emb=angles, packed_seq_params=packed)
        kept = torch.cuda.memory_allocated() - before
        out.backward(torch.ones_like(out) / sum(lengths))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        del out
    return kept, min(seconds[1:])


def operations(layer: Layer, lengths: list[int]) -> float:
    """Of one forward pass over sequences of these lengths."""
    return sum(length * part.flops(length) for length in lengths for part in layer.parts)


if __name__ == "__main__":
    limits = {f"{name}_{recompute}_off": TOLERANCE for name, recompute in product(DENSE.split(","), RECOMPUTE)}
    sys.exit(run(__doc__, "megatron_layers", measure, limits=limits, recipes=DENSE))
