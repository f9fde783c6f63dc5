"""Bytes of the trainer's lasting tensors on one GPU and in one machine's memory. Pure arithmetic.

What a layer holds, its parts know (`recipes/layers/`); here they are added up. The rest of the arithmetic is in
`memory.py`, `admission.py` and `rollout.py`. Invariants, which tests hold:

- what the GPUs hold of the weights adds up to the model, what is replicated counted once;
- no size grows when a parallel size grows and the GPUs do so with it;
- with one GPU of everything, weights are 2 bytes a parameter, gradients 4 and optimizer states 12: the 18 bytes a
  parameter of Megatron-LM's `theoretical_memory_usage.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log

from slime_swe.errors import UserError
from slime_swe.recipes.layers import WEIGHT_BYTES, Layout, Shape, Shard, summed

GIB = 2**30

GRADIENT_BYTES = 4  # fp32: --accumulate-allreduce-grads-in-fp32
STATE_BYTES = 12  # fp32 master weight and AdamW's two moments

PINNED_ROUNDING = 2 * log(2)
"""PyTorch rounds a pinned allocation up to a power of two. Of sizes spread evenly on a logarithmic scale, the blocks
add up to 2 ln 2 = 1.39 times what was asked for."""


def padded_vocab(vocab: int, tp: int) -> int:
    """Rows of the embedding table in the trainer, which tp has to divide.

    Source: Megatron-LM `training/tokenizer`, `_vocab_size_with_padding` with the divisor that is rendered
    (`launch.slime.render.vocabulary_unit`).
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


# What the planner assumes where no recipe says it and no formula gives it; `--assume NAME=VALUE` changes it.
ABOVE_ZERO = ("turn_seconds", "grade_seconds", "sandbox_cpus")
"""Without these there is no episode to simulate."""
AT_MOST_ONE = ("context", "sampled", "turns", "informative")


@dataclass(frozen=True)
class Assumptions:
    """Numbers to replace by what a first run measures.

    Of episodes, on average; how they spread is in `simulation/workload.py`. The first four are 0 for what the recipe's
    `forecast` says:

    context: the length at the end, as a share of `rollout.max_context`.
    sampled: tokens that the policy sampled, as a share of that length.
    turns: model calls, as a share of `rollout.max_turns`.
    informative: groups that pass the filter, as a share of those that are sampled.
    turn_seconds: in the sandbox, for one model call's commands.
    grade_seconds: for grading; the median.

    Of machines:

    mfu: share of the GPU's FLOP/s that training reaches; 0 takes the value of the GPU's kind.
    prefill_mfu, decode_bandwidth: shares of FLOP/s and of memory bandwidth that serving reaches.
    layer_latency: microseconds of one layer in a decoding step, however little there is to read.
    prefill_chunk: tokens of one prefill pass.
    skew: tokens of the busiest expert-parallel rank, over the mean.
    context_gib, group_gib: GiB of a CUDA context with its libraries, and of one NCCL communicator.
    trainer_rest, server_rest: GiB that a paused trainer keeps on a GPU (SLiME reports 3 to 5), and a paused server.
    fragmentation: of what the allocator hands out and takes back, as a share of it.
    margin: share of a GPU's memory, and of a machine's, to keep free: the formulae are no better than that, and Ray
        kills workers of a machine that is 95 % full.
    sync_rate: GB/s at which one node's engines receive weights. SLiME's co-located 30B-A3B takes 7 s for 61 GB.
    pcie, host_bandwidth: GB/s of one GPU's link, and of one machine's memory.
    sandbox_cpus, sandbox_gib: CPU cores that a command in a sandbox keeps busy, and a sandbox's memory.
    image_gib: of one task's container image beside the layers it shares; 0 takes what is published of its corpus, and
        where nothing is, 0.5, or 3 where a sandbox unpacks it.
    process_gib, node_gib: machine memory of the processes of one GPU, and of everything else on a node.
    """

    context: float = 0.0
    sampled: float = 0.0
    turns: float = 0.0
    informative: float = 0.0
    turn_seconds: float = 2.0
    grade_seconds: float = 60.0
    mfu: float = 0.0
    prefill_mfu: float = 0.4
    decode_bandwidth: float = 0.6
    layer_latency: float = 60.0
    prefill_chunk: float = 8192
    skew: float = 1.25
    context_gib: float = 1.5
    group_gib: float = 0.5
    trainer_rest: float = 4.0
    server_rest: float = 3.0
    fragmentation: float = 0.05
    margin: float = 0.05
    sync_rate: float = 8.7
    pcie: float = 25.0
    host_bandwidth: float = 200.0
    sandbox_cpus: float = 1.0
    sandbox_gib: float = 2.0
    image_gib: float = 0.0
    process_gib: float = 12.0
    node_gib: float = 16.0


def assume(options: Iterable[str]) -> Assumptions:
    """The assumptions with `NAME=VALUE` changes. Raises `UserError` for an unknown name or what is no number."""
    names = [field.name for field in dataclasses.fields(Assumptions)]
    changes = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in names:
            raise UserError(f"--assume {option!r}: there is no assumption {name!r}. There are {', '.join(names)}")
        changes[name] = _positive(option, value)
        if (name in ABOVE_ZERO and not changes[name]) or (name in AT_MOST_ONE and changes[name] > 1):
            raise UserError(f"--assume {option!r}: give more than 0{', and at most 1' * (name in AT_MOST_ONE)}")
    return dataclasses.replace(Assumptions(), **changes)


def _positive(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise UserError(f"--assume {option!r}: {value!r} is not a number") from error
    if not 0 <= number < float("inf"):
        raise UserError(f"--assume {option!r}: {value!r} must be a number of at least 0")
    return number
