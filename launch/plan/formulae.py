"""Bytes of the trainer's lasting tensors on one GPU and in one machine's memory. Pure arithmetic.

What a layer holds, its parts know (`recipes/layers/`); here they are added up. The rest of the arithmetic is in
`activations.py`, `serving.py` and `roofline.py`. Invariants, which tests hold:

- what the GPUs hold of the weights adds up to the model, what is replicated counted once;
- no size grows when a parallel size grows and the GPUs do so with it;
- with one GPU of everything, weights are 2 bytes a parameter, gradients 4 and optimizer states 12: the 18 bytes a
  parameter of Megatron-LM's `theoretical_memory_usage.py`.
"""

from __future__ import annotations

from math import ceil, log

from slime_swe.recipes.layers import WEIGHT_BYTES
from slime_swe.recipes.layout import Layout, Shard
from slime_swe.recipes.shape import Shape, summed

GIB = 2**30

GRADIENT_BYTES = 4  # fp32: --accumulate-allreduce-grads-in-fp32
STATE_BYTES = 12  # fp32 master weight and AdamW's two moments

PINNED_ROUNDING = 2 * log(2)
"""PyTorch rounds a pinned allocation up to a power of two. Of sizes spread evenly on a logarithmic scale, the blocks
add up to 2 ln 2 = 1.39 times what was asked for."""


def padded_vocab(vocab: int, tp: int) -> int:
    """Rows of the embedding table in the trainer, which tp has to divide.

    Source: Megatron-LM `training/tokenizer`, `_vocab_size_with_padding` with the divisor that is rendered
    (`launch.slime.sections.vocabulary_unit`).
    """
    return ceil(vocab / tp) * tp


def shard(shape: Shape, layout: Layout, stage: int) -> Shard:
    """What one GPU of pipeline stage `stage` (from 0) holds.

    The first stage has the embedding table, the last one the output projection: a copy of the table if they are tied
    and there are several stages, the table itself if there is one. Source: Megatron-LM `core/models/gpt/gpt_model.py`.
    """
    layers = shape.stage(stage, layout.pp)
    first, last = stage == 0, stage == layout.pp - 1
    table = padded_vocab(shape.vocab, layout.tp) * shape.hidden / layout.tp
    tables = first + (last and not (first and shape.tied))
    dense = summed(layers, lambda part: part.shard(layout).dense) + tables * table + last * shape.hidden
    return Shard(dense=dense, expert=summed(layers, lambda part: part.shard(layout).expert))


def weight_bytes(held: Shard) -> float:
    return WEIGHT_BYTES * held.parameters


def gradient_bytes(held: Shard) -> float:
    """One fp32 buffer for all gradients of a GPU.

    Source: Megatron-LM `core/distributed/param_and_grad_buffer.py`; the distributed optimizer shards what is updated,
    not this buffer.
    """
    return GRADIENT_BYTES * held.parameters


def owned(held: Shard, layout: Layout) -> float:
    """Parameters that one GPU updates under the distributed optimizer, which SLiME always uses.

    The dense ones are shared out over data and context parallel ranks, experts over the ranks that hold the same ones.
    Source: Megatron-LM `core/optimizer/distrib_optimizer.py`; ZeRO-1, Rajbhandari et al. 2020.
    """
    return held.dense / (layout.dp * layout.cp) + (held.expert / layout.edp if held.expert else 0.0)


def optimizer_bytes(held: Shard, layout: Layout, *, offload: bool) -> float:
    """Optimizer states on the GPU; none when they are kept and stepped in the machine's memory.

    Source: SLiME's `--optimizer-cpu-offload --use-precision-aware-optimizer`, with Megatron-LM's default fraction of 1.
    """
    return 0.0 if offload else STATE_BYTES * owned(held, layout)


def host_state_bytes(held: Shard, layout: Layout, *, offload: bool, paused: bool) -> float:
    """Optimizer states of one GPU in the machine's memory.

    Offloaded: fp32 master weight and two moments, and a pinned fp32 copy of the gradient (Megatron-LM
    `core/optimizer/cpu_offloading/hybrid_optimizer.py`). Not offloaded but paused while the server has the GPU:
    torch_memory_saver's copy of the states.
    """
    updated = owned(held, layout)
    if offload:
        return updated * (STATE_BYTES + GRADIENT_BYTES * PINNED_ROUNDING)
    return updated * STATE_BYTES if paused else 0.0


def host_weight_bytes(held: Shard, *, reference: bool, old_actor: bool = False) -> float:
    """Pinned bf16 copies of one GPU's weights: the actor's, the reference's where there is a KL penalty, and with
    `--keep-old-actor` two more, those that sample and those before them.

    Source: SLiME `utils/tensor_backper.py`, which every trainer uses, co-located or not; `megatron_utils/actor.py`.
    """
    return WEIGHT_BYTES * held.parameters * PINNED_ROUNDING * (1 + reference + 2 * old_actor)


def sync_buffer_bytes(shape: Shape, buffer: int) -> float:
    """GPU memory of one step of SLiME's weight synchronisation.

    A bucket is at most `buffer` bytes or one whole tensor, of which the embedding table is the largest; it is there
    three times: as gathered parts, joined, and flattened for the server. Source: SLiME
    `update_weight/hf_weight_iterator_direct.py` and `update_weight_from_tensor.py`.
    """
    return 3.0 * max(buffer, WEIGHT_BYTES * shape.table)


def checkpoint_bytes(shape: Shape) -> float:
    """One checkpoint on disk: weights and optimizer states."""
    return (WEIGHT_BYTES + STATE_BYTES) * shape.parameters
