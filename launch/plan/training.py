"""The bytes, FLOPs and seconds that training takes of a GPU and of its machine. Pure arithmetic.

A layer's parts know what it holds, keeps and computes (`recipes/layers/`); here layers, micro-batches, the tables of
the vocabulary and the logits are added up. Sources are named where they are used. Invariants, which tests hold:

- what the GPUs hold of the weights adds up to the model, what is replicated counted once;
- no size grows when a parallel size grows and the GPUs do so with it;
- with one GPU of everything, weights are 2 bytes a parameter, gradients 4 and optimizer states 12: the 18 bytes a
  parameter of Megatron-LM's `theoretical_memory_usage.py`;
- full recomputation never keeps more than selective, and selective never more than none; all activations are
  proportional to the tokens;
- without `algorithm.lora_rank` everything is the whole weights', and no adapter takes a byte; with it, what the GPUs
  hold of the adapters adds up to all of them.

A known value: 23.0 GFLOP a token for Qwen3-30B-A3B at 4,096 tokens (Megatron-Bridge's published 203 TFLOP/s at 8,826
tokens/s on one H100).
"""

from __future__ import annotations

from math import ceil, log

from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.layers import ONE_GPU, WEIGHT_BYTES, Layout, Shape, Shard, summed

GRADIENT_BYTES = 4  # fp32: --accumulate-allreduce-grads-in-fp32
STATE_BYTES = 12  # fp32 master weight and AdamW's two moments

PINNED_ROUNDING = 2 * log(2)
"""PyTorch rounds a pinned allocation up to a power of two. Of sizes spread evenly on a logarithmic scale, the blocks
add up to 2 ln 2 = 1.39 times what was asked for."""


def layout_of(recipe: Recipe) -> Layout:
    parallel = recipe.parallel
    return Layout(recipe.cluster.train_gpus, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.etp)


def padded_vocab(vocab: int, tp: int) -> int:
    """Return the rows of the embedding table in the trainer, which tp has to divide.

    Source: Megatron-LM `training/tokenizer`, `_vocab_size_with_padding` with the divisor that is rendered
    (`launch.slime.render.vocabulary_unit`).
    """
    return ceil(vocab / tp) * tp


def shard(shape: Shape, layout: Layout, stage: int) -> Shard:
    """Return the parameters that one GPU of pipeline stage `stage` (from 0) holds.

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
    """Return the bytes of the one fp32 buffer for all gradients of a GPU.

    Source: Megatron-LM `core/distributed/param_and_grad_buffer.py`; the distributed optimizer shards what is updated,
    not this buffer.
    """
    return GRADIENT_BYTES * held.parameters


def owned(held: Shard, layout: Layout) -> float:
    """Return the parameters that one GPU updates under the distributed optimizer, which SLiME always uses.

    The dense ones are shared out over data and context parallel ranks, experts over the ranks that hold the same ones.
    Source: Megatron-LM `core/optimizer/distrib_optimizer.py`; ZeRO-1, Rajbhandari et al. 2020.
    """
    return held.dense / (layout.dp * layout.cp) + (held.expert / layout.edp if held.expert else 0.0)


def optimizer_bytes(held: Shard, layout: Layout, *, offload: bool) -> float:
    """Return the bytes of optimizer states on the GPU; 0 when they are kept and stepped in the machine's memory.

    Source: SLiME's `--optimizer-cpu-offload --use-precision-aware-optimizer`, with Megatron-LM's default fraction of 1.
    """
    return 0.0 if offload else STATE_BYTES * owned(held, layout)


def host_state_bytes(held: Shard, layout: Layout, *, offload: bool, paused: bool) -> float:
    """Return the bytes of one GPU's optimizer states in the machine's memory.

    Offloaded: fp32 master weight and two moments, and a pinned fp32 copy of the gradient (Megatron-LM
    `core/optimizer/cpu_offloading/hybrid_optimizer.py`). Not offloaded but paused while the server has the GPU:
    torch_memory_saver's copy of the states.
    """
    updated = owned(held, layout)
    if offload:
        return updated * (STATE_BYTES + GRADIENT_BYTES * PINNED_ROUNDING)
    return updated * STATE_BYTES if paused else 0.0


def host_weight_bytes(held: Shard, *, reference: bool, old_actor: bool = False) -> float:
    """Return the bytes of the pinned bf16 copies of one GPU's weights: the actor's, the reference's where there is a KL
    penalty, and with `--keep-old-actor` two more, those that sample and those before them.

    Source: SLiME `utils/tensor_backper.py`, which every trainer uses, co-located or not; `megatron_utils/actor.py`.
    """
    return WEIGHT_BYTES * held.parameters * PINNED_ROUNDING * (1 + reference + 2 * old_actor)


def sync_buffer_bytes(shape: Shape, buffer: int) -> float:
    """Return the bytes of GPU memory that one step of SLiME's weight synchronisation takes.

    A bucket is at most `buffer` bytes or one whole tensor, of which the embedding table is the largest; it is there
    three times: as gathered parts, joined, and flattened for the server. Source: SLiME
    `update_weight/hf_weight_iterator_direct.py` and `update_weight_from_tensor.py`.
    """
    return 3.0 * max(buffer, WEIGHT_BYTES * shape.table)


# A recipe trains the weights, or adapters beside them: this is what that takes in memory, on disk and on the wire.
ADAPTER_COPIES = 2  # in a checkpoint: each rank's own part, and the whole for PEFT


def trained(recipe: Recipe, layout: Layout, stage: int) -> Shard:
    """Return the parameters on one GPU of a pipeline stage that have gradients and optimizer states.

    Source: miles `megatron_utils/bridge_lora_helpers.py`, which freezes the weights before Megatron-LM
    `core/distributed/param_and_grad_buffer.py` makes buffers for what wants a gradient.
    """
    return adapters.shard(recipe, layout, stage) if recipe.algorithm.lora_rank else whole(recipe, layout, stage)


def whole(recipe: Recipe, layout: Layout, stage: int) -> Shard:
    return shard(recipe.model.shape, layout, stage)


def adapter_bytes(recipe: Recipe, layout: Layout, stage: int) -> float:
    """Return the bytes of adapters on one GPU of the trainer."""
    return WEIGHT_BYTES * adapters.shard(recipe, layout, stage).parameters


def resident_bytes(recipe: Recipe, layout: Layout) -> float:
    """Return the bytes of adapters and their gradients that stay on a co-located trainer's GPU while the server has it.

    Source: miles `megatron_utils/lora_utils.py`, `patch_param_grad_buffer_for_colocate_mode_lora`; `actor.py`, `sleep`.
    """
    held = max(adapters.shard(recipe, layout, stage).parameters for stage in range(layout.pp))
    return (WEIGHT_BYTES + GRADIENT_BYTES) * held


def sent_bytes(recipe: Recipe) -> float:
    """Return the bytes that one synchronisation moves. A co-located engine has let go of the weights, which are sent
    again with each adapter. Source: miles `update_weight_from_tensor.py`, `skip_base_sync`;
    `update_weight_from_distributed/mixin.py`."""
    adapter = WEIGHT_BYTES * adapters.exported(recipe).parameters
    weights = WEIGHT_BYTES * recipe.model.shape.parameters
    return adapter + (weights if recipe.cluster.colocate or not recipe.algorithm.lora_rank else 0.0)


def checkpoint_bytes(recipe: Recipe) -> float:
    """Return the bytes of one checkpoint on disk: optimizer states, and the weights that they are of. The weights that
    an adapter leaves as they are, are in none. Source: miles `megatron_utils/lora_utils.py`, `save_lora_checkpoint`."""
    if not recipe.algorithm.lora_rank:
        return (WEIGHT_BYTES + STATE_BYTES) * recipe.model.shape.parameters
    return (ADAPTER_COPIES * WEIGHT_BYTES + STATE_BYTES) * adapters.parameters(recipe)


# Bytes of activations: bf16 unless said, with sequence parallelism wherever tp > 1, as in SLiME's scripts. Tokens are
# those of one micro-batch on one GPU: `parallel.max_tokens_per_gpu`.
def saved_bytes(
    shape: Shape, layout: Layout, tokens: int, *, recompute: str, stage: int, in_flight: int, skew: float
) -> float:
    """Return the bytes that the forward passes of all micro-batches in flight keep for the backward pass.

    in_flight: micro-batches that a pipeline stage has begun and not finished: at most pp - stage in the schedule 1F1B
        (Narayanan et al. 2021), and no more than there are.
    skew: tokens that the busiest expert-parallel rank gets, over the mean.
    """
    layers = shape.stage(stage, layout.pp).items()
    kept = sum(count * layer.saved(layout, recompute=recompute, skew=skew) for layer, count in layers)
    final = 4 * shape.hidden / layout.tp if stage == layout.pp - 1 else 0.0  # the last norm's input and output
    return tokens * (in_flight * kept + final)


def workspace_bytes(shape: Shape, layout: Layout, tokens: int, *, recompute: str, stage: int = 0, skew: float) -> float:
    """Return the most bytes that one layer's backward pass needs for a moment."""
    layers = shape.stage(stage, layout.pp)
    return tokens * max(layer.workspace(layout, recompute=recompute, skew=skew) for layer in layers)


def logits_bytes(shape: Shape, layout: Layout, tokens: int, *, entropy: bool, scaled: bool) -> float:
    """Return the bytes of fp32 `[tokens, vocab / tp]`: the logits and their softmax, which becomes the gradient in
    place; a third one where entropy has a gradient or the temperature is not 1.

    They are counted on the last stage, over all tokens. Computing log-probabilities in chunks saves nothing here: each
    chunk keeps its softmax, and the gradients are joined again. Source: SLiME `utils/ppo_utils.py`,
    `_VocabParallelLogProbEntropy`, and `backends/megatron_utils/loss.py`, `get_log_probs_and_entropy`.
    """
    copies = 3 if entropy or scaled else 2
    return 4.0 * copies * tokens * padded_vocab(shape.vocab, layout.tp) / layout.tp


# FLOPs and seconds.
FORWARD, BACKWARD = 1, 2  # in units of one forward pass
OPTIMIZER_TRAFFIC = 28  # bytes a parameter: master weight, two moments and gradient read, three of them written


def forward_flops(shape: Shape, length: float, layout: Layout = ONE_GPU) -> float:
    """Return the FLOPs of one token of a sequence of `length` tokens, on average, on all GPUs that compute it: two a
    weight, without the look-up of its embedding, and attention.

    Source: Kaplan et al. 2020, appendix B; Megatron-LM `training/training.py`, `num_floating_point_operations`.
    """
    layers = shape.total(lambda part: part.copies(layout) * part.flops(length))
    return layers + 2 * (shape.table + shape.hidden)


def train_flops(
    shape: Shape, length: float, recompute: str = "none", layout: Layout = ONE_GPU, *, frozen: bool = False
) -> float:
    """Return the FLOPs of one token, forward and backward; with full recomputation, the forward pass twice: x 4/3.

    frozen: only the gradients of inputs are computed, half of a backward pass, for adapters, whose own are left out:
    they are a rank over a width of it.
    """
    backward = BACKWARD / 2 if frozen else BACKWARD
    passes = FORWARD + backward + (FORWARD if recompute == "full" else 0)
    return passes * forward_flops(shape, length, layout)


def bubble(pp: int, micro_batches: float) -> float:
    """Return how much longer a pipeline of pp stages takes than its work: 1 + (pp - 1) / m (Narayanan et al. 2021)."""
    return 1 + (pp - 1) / max(micro_batches, 1)


def offloaded_step_seconds(updated: float, gpus_per_node: int, pcie: float, host_bandwidth: float) -> float:
    """Return the seconds of AdamW in the machine's memory, on `updated` parameters a GPU, the longer of two: gradients
    (4 bytes) and new weights (4) go over PCIe while one machine's memory serves the updates of all its GPUs."""
    transfer = 8 * updated / pcie
    update = OPTIMIZER_TRAFFIC * updated * gpus_per_node / host_bandwidth
    return max(transfer, update)
