"""A recipe -> how many episodes its run plays at once: as many as the KV caches of its engines hold.

What one engine's cache holds is the planner's arithmetic. The run gets it as `args.swe_cached_episodes`; its player,
the plan and the plan's simulation make the same of it, by `rollout.scheduling.admission.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf

from slime_swe.launch.plan.formulae import GIB, GRADIENT_BYTES, STATE_BYTES, Assumptions, shard
from slime_swe.launch.plan.formulae import checkpoint_bytes as whole_checkpoint_bytes
from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layers import WEIGHT_BYTES, Layout, SglangEngine, Shape, Shard
from slime_swe.rollout.scheduling.admission import Bounds, bounds

MOST_SHARE = 4  # times what the caches hold by the plan: where no number is given, a run admits no more than this
UNKNOWN = 64.0  # episodes that a server which runs already is taken to hold: nobody says what GPUs it has


@dataclass(frozen=True)
class Episodes:
    """What is assumed or forecast, on average: `length` tokens at the end, `sampled` of them by the policy in `turns`
    model calls."""

    length: float
    sampled: float
    turns: float


def episodes_of(recipe: Recipe, assumed: Assumptions) -> Episodes:
    rollout, forecast = recipe.rollout, recipe.forecast
    length = (assumed.context or forecast.context) * rollout.max_context
    turns = max((assumed.turns or forecast.turns) * rollout.max_turns, 1.0)
    return Episodes(length, min((assumed.sampled or forecast.sampled) * length, turns * rollout.max_response), turns)


def informative(recipe: Recipe, assumed: Assumptions) -> float:
    """Share of the groups that are trained."""
    expected = recipe.informative.expected
    return expected if expected == 1 else assumed.informative or expected


def sglang_engine(recipe: Recipe) -> SglangEngine:
    serving = recipe.serving
    return SglangEngine(max(serving.gpus_per_engine, 1), serving.dp_attention, mixture=bool(recipe.model.shape.experts))


def engines(recipe: Recipe) -> int:
    """Copies of the model that sample."""
    if recipe.serving.external_engines:
        return len(recipe.serving.external_engines)
    return max(recipe.cluster.serve_gpus // sglang_engine(recipe).gpus, 1)


def cache_pool(recipe: Recipe) -> float:
    """Bytes of KV cache on one serving GPU: SGLang's static share of the GPU, less weights and an adapter.

    Source: SGLang `srt/model_executor/model_runner_kv_cache_mixin.py`; SLiME starts its engines on empty GPUs.
    """
    static = recipe.serving.mem_fraction * GPUS[recipe.cluster.gpu].memory * GIB
    engine = sglang_engine(recipe)
    return static - weight_bytes(recipe.model.shape, engine) - served_bytes(recipe)


# What a recipe trains, the weights or adapters beside them, and what that is in memory, on disk and on the wire.
#
# Invariants, which tests hold: without `algorithm.lora_rank` everything is the whole weights', and no adapter takes a
# byte; with it, what the GPUs hold of the adapters adds up to all of them.
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


def cache_tokens(recipe: Recipe) -> int:
    """Tokens that one engine's KV cache holds."""
    return capacity(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


def running_requests(recipe: Recipe) -> float:
    """Requests whose states of fixed size one engine holds."""
    return running(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


# Bytes of one SGLang engine's GPUs, and how fast they sample. Pure arithmetic.
#
# An engine spreads one copy of the model over its GPUs by tensor parallelism. Invariants, which tests hold: the cache
# of a token does not grow with the GPUs of an engine, and all GPUs together hold each of its heads at least once;
# sampling gets no faster when there is more to read.
MIB = 2**20
NO_LIMIT = 10**12  # tokens, of a model without a cache
STATE_SHARE = 0.9 / 1.9  # of a pool: SGLang's default of --mamba-full-memory-ratio
STATES = 5  # of one request that runs: its own, those that the prefix cache keeps, and two that its scheduler fills


def capacity(shape: Shape, engine: SglangEngine, pool: float) -> int:
    """Tokens that one engine's cache holds, with `pool` bytes on each of its GPUs. Where requests have a state of fixed
    size too, SGLang sets aside a share of the pool for these."""
    tokens = max(pool, 0.0) * (1 - STATE_SHARE if shape.state(engine) else 1)
    a_token = shape.cache(engine)
    return int(engine.gpus / engine.attention_gpus * tokens / a_token) if a_token else NO_LIMIT


def running(shape: Shape, engine: SglangEngine, pool: float) -> float:
    """Requests whose states one engine holds; without end where they have none.

    Source: SGLang `srt/model_executor/model_runner_kv_cache_mixin.py`, `handle_max_mamba_cache` and
    `_calculate_mamba_ratio`, with the radix cache and the overlapped schedule that are its defaults.
    """
    state = STATES * shape.state(engine)
    return engine.gpus / engine.attention_gpus * max(pool, 0.0) * STATE_SHARE // state if state else inf


def weight_bytes(shape: Shape, engine: SglangEngine) -> float:
    """bf16 weights on one GPU of an engine; its tables of the vocabulary are whole under data-parallel attention.

    Source: SGLang `srt/layers/vocab_parallel_embedding.py` and `srt/layers/dp_attention.py`; `--enable-dp-lm-head`.
    """
    tables = shape.tables * shape.table / engine.attention_gpus
    return WEIGHT_BYTES * (shape.total(lambda part: part.served(engine)) + tables + shape.hidden / engine.gpus)


def runtime_bytes(shape: Shape, engine: SglangEngine, prefill: int) -> float:
    """What an engine needs beside weights and cache: CUDA context and attention workspace (1.5 GiB), graphs (2 MiB for
    each of 256 batch sizes, 512 from 4 GPUs on), 1/8 GiB a GPU of the engine for communication, and the activations of
    one prefill chunk of `prefill` tokens.

    Source: the terms of SGLang's own estimate (`srt/server_args.py`), whose 1.5 MiB a prefill token is replaced by the
    widest tensors of these models.
    """
    graphs = 2 * MIB * (512 if engine.gpus >= 4 else 256)
    widest = max(part.prefill(engine) for part in shape.parts)
    return 1.5 * GIB + graphs + engine.gpus / 8 * GIB + prefill * (8 * shape.hidden + widest)


def read_bytes(shape: Shape, batch: float) -> float:
    """Weights that one decoding step of an engine reads: all but the look-up of `batch` embeddings, and experts that
    none of these requests chose."""
    projections = shape.table + shape.hidden
    return WEIGHT_BYTES * (shape.total(lambda part: part.read(batch)) + projections)


def decode_seconds(
    shape: Shape,
    engine: SglangEngine,
    batch: float,
    context: float,
    *,
    bandwidth: float,
    flops: float,
    layer_latency: float,
) -> float:
    """One decoding step of one engine: what reading takes, or computing where that is longer, and a floor of
    `layer_latency` seconds a layer for launches and communication.

    bandwidth, flops: of one GPU, as reached. Heads that are replicated are read by each GPU that has them.
    """
    requests = batch * engine.attention_gpus / engine.gpus  # of one GPU
    cache = requests * (context * shape.cache(engine) + 2 * shape.state(engine))  # a state is written too
    read = (read_bytes(shape, batch) / engine.gpus + cache) / bandwidth
    compute = batch * 2 * shape.active_parameters / (engine.gpus * flops)
    return max(read, compute) + len(shape.layers) * layer_latency


def cached_episodes(recipe: Recipe, assumed: Assumptions | None = None) -> float:
    """Episodes of mean length that one engine's KV cache, and its states of linear attention, hold; at least one. 0
    where nothing is served on GPUs: other servers have no cache that the planner counts."""
    if recipe.cluster.gpu not in GPUS:
        return 0.0
    if recipe.serving.external_engines:
        return UNKNOWN
    held = cache_tokens(recipe) / episodes_of(recipe, assumed or Assumptions()).length
    return max(min(held, running_requests(recipe)), 1.0)


def most_an_engine(recipe: Recipe, assumed: Assumptions | None = None) -> int:
    """`serving.concurrency`; where that is 0, `MOST_SHARE` times what an engine's cache holds."""
    return recipe.serving.concurrency or math.ceil(MOST_SHARE * cached_episodes(recipe, assumed))


def bounds_of(recipe: Recipe, assumed: Assumptions | None = None) -> Bounds:
    """Episodes that the run plays at once, on all engines together."""
    return bounds(most_an_engine(recipe, assumed), cached_episodes(recipe, assumed), engines(recipe))
