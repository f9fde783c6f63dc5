"""What a recipe trains, the weights or adapters beside them, and what that is in memory, on disk and on the wire.

Invariants, which tests hold: without `algorithm.lora_rank` everything is the whole weights', and no adapter takes a
byte; with it, what the GPUs hold of the adapters adds up to all of them.
"""

from __future__ import annotations

from slime_swe.launch.plan.formulae import GRADIENT_BYTES, STATE_BYTES, shard
from slime_swe.launch.plan.formulae import checkpoint_bytes as whole_checkpoint_bytes
from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.layers import WEIGHT_BYTES
from slime_swe.recipes.layout import Layout, Shard

ADAPTER_COPIES = 2  # in a checkpoint: each rank's own part, and the whole for PEFT


def trained(recipe: Recipe, layout: Layout, stage: int) -> Shard:
    """Parameters on one GPU of a pipeline stage that have gradients and optimizer states.

    Source: miles `megatron_utils/bridge_lora_helpers.py`, which freezes the weights before Megatron-LM
    `core/distributed/param_and_grad_buffer.py` makes buffers for what wants a gradient.
    """
    return adapters.shard(recipe, layout, stage) if recipe.algorithm.lora_rank else whole(recipe, layout, stage)


def whole(recipe: Recipe, layout: Layout, stage: int) -> Shard:
    return shard(recipe.model.shape, layout, stage)


def adapter_bytes(recipe: Recipe, layout: Layout, stage: int) -> float:
    """Adapters on one GPU of the trainer."""
    return WEIGHT_BYTES * adapters.shard(recipe, layout, stage).parameters


def resident_bytes(recipe: Recipe, layout: Layout) -> float:
    """What of the adapters stays on a co-located trainer's GPU while the server has it: weights and gradients.

    Source: miles `megatron_utils/lora_utils.py`, `patch_param_grad_buffer_for_colocate_mode_lora`; `actor.py`, `sleep`.
    """
    held = max(adapters.shard(recipe, layout, stage).parameters for stage in range(layout.pp))
    return (WEIGHT_BYTES + GRADIENT_BYTES) * held


def served_bytes(recipe: Recipe) -> float:
    """Buffers of one adapter on one GPU of an engine: those of experts shared out by expert parallelism, the others
    counted whole, although SGLang shares out one matrix of each pair.

    Source: SGLang `srt/lora/mem_pool.py`, `get_lora_A_shape`, `get_lora_B_shape`; miles gives it room for one adapter.
    """
    sent = adapters.exported(recipe)
    return WEIGHT_BYTES * (sent.dense + sent.expert / recipe.serving.ep)


def sent_bytes(recipe: Recipe) -> float:
    """That one synchronisation moves. A co-located engine has let go of the weights, which are sent again with each
    adapter. Source: miles `update_weight_from_tensor.py`, `skip_base_sync`; `update_weight_from_distributed/mixin.py`.
    """
    adapter = WEIGHT_BYTES * adapters.exported(recipe).parameters
    weights = WEIGHT_BYTES * recipe.model.shape.parameters
    return adapter + (weights if recipe.cluster.colocate or not recipe.algorithm.lora_rank else 0.0)


def checkpoint_bytes(recipe: Recipe) -> float:
    """One checkpoint on disk: optimizer states, and the weights that they are of. The weights that an adapter leaves as
    they are, are in none. Source: miles `megatron_utils/lora_utils.py`, `save_lora_checkpoint`."""
    if not recipe.algorithm.lora_rank:
        return whole_checkpoint_bytes(recipe.model.shape)
    return (ADAPTER_COPIES * WEIGHT_BYTES + STATE_BYTES) * adapters.parameters(recipe)
