"""The bytes that one SGLang engine takes and holds of its GPUs, and how fast it samples. Pure arithmetic.

An engine spreads one copy of the model over its GPUs by tensor parallelism. Sources are named where they are used.
Invariants, which tests hold: the cache of a token does not grow with the GPUs of an engine, and all GPUs together hold
each of its heads at least once; sampling gets no faster when there is more to read.
"""

from __future__ import annotations

from math import inf

from slime_swe.launch.plan import GIB
from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layers import WEIGHT_BYTES, SglangEngine, Shape

MIB = 2**20
NO_LIMIT = 10**12  # tokens, of a model without a cache
STATE_SHARE = 0.9 / 1.9  # of a pool: SGLang's default of --mamba-full-memory-ratio
STATES = 5  # of one request that runs: its own, those that the prefix cache keeps, and two that its scheduler fills


def sglang_engine(recipe: Recipe) -> SglangEngine:
    serving = recipe.serving
    return SglangEngine(max(serving.gpus_per_engine, 1), serving.dp_attention, mixture=bool(recipe.model.shape.experts))


def engines(recipe: Recipe) -> int:
    """Count the copies of the model that sample."""
    if recipe.serving.external_engines:
        return len(recipe.serving.external_engines)
    return max(recipe.cluster.serve_gpus // sglang_engine(recipe).gpus, 1)


def cache_tokens(recipe: Recipe) -> int:
    """Return the tokens that one engine's KV cache holds."""
    return capacity(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


def running_requests(recipe: Recipe) -> float:
    """Return the number of requests whose states of fixed size one engine holds."""
    return running(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


def cache_pool(recipe: Recipe) -> float:
    """Return the bytes of KV cache on one serving GPU: SGLang's static share of the GPU, less weights and an adapter.

    Source: SGLang `srt/model_executor/model_runner_kv_cache_mixin.py`; SLiME starts its engines on empty GPUs.
    """
    static = recipe.serving.mem_fraction * GPUS[recipe.cluster.gpu].memory * GIB
    engine = sglang_engine(recipe)
    return static - weight_bytes(recipe.model.shape, engine) - served_bytes(recipe)


def served_bytes(recipe: Recipe) -> float:
    """Return the bytes of one adapter's buffers on one GPU of an engine: those of experts shared out by expert
    parallelism, the others counted whole, although SGLang shares out one matrix of each pair.

    Source: SGLang `srt/lora/mem_pool.py`, `get_lora_A_shape`, `get_lora_B_shape`; miles gives it room for one adapter.
    """
    sent = adapters.exported(recipe)
    return WEIGHT_BYTES * (sent.dense + sent.expert / recipe.serving.ep)


def capacity(shape: Shape, engine: SglangEngine, pool: float) -> int:
    """Return the tokens that one engine's cache holds, with `pool` bytes on each of its GPUs. Where requests have a
    state of fixed size too, SGLang sets aside a share of the pool for these."""
    tokens = max(pool, 0.0) * (1 - STATE_SHARE if shape.state(engine) else 1)
    a_token = shape.cache(engine)
    return int(engine.gpus / engine.attention_gpus * tokens / a_token) if a_token else NO_LIMIT


def running(shape: Shape, engine: SglangEngine, pool: float) -> float:
    """Return the number of requests whose states one engine holds; infinity where they have none.

    Source: SGLang `srt/model_executor/model_runner_kv_cache_mixin.py`, `handle_max_mamba_cache` and
    `_calculate_mamba_ratio`, with the radix cache and the overlapped schedule that are its defaults.
    """
    state = STATES * shape.state(engine)
    return engine.gpus / engine.attention_gpus * max(pool, 0.0) * STATE_SHARE // state if state else inf


def weight_bytes(shape: Shape, engine: SglangEngine) -> float:
    """Return the bytes of bf16 weights on one GPU of an engine; its tables of the vocabulary are whole under
    data-parallel attention.

    Source: SGLang `srt/layers/vocab_parallel_embedding.py` and `srt/layers/dp_attention.py`; `--enable-dp-lm-head`.
    """
    tables = shape.tables * shape.table / engine.attention_gpus
    return WEIGHT_BYTES * (shape.total(lambda part: part.served(engine)) + tables + shape.hidden / engine.gpus)


def runtime_bytes(shape: Shape, engine: SglangEngine, prefill: int) -> float:
    """Return the bytes that an engine needs on a GPU beside weights and cache: CUDA context and attention workspace
    (1.5 GiB), graphs (2 MiB for each of 256 batch sizes, 512 from 4 GPUs on), 1/8 GiB a GPU of the engine for
    communication, and the activations of one prefill chunk of `prefill` tokens.

    Source: the terms of SGLang's own estimate (`srt/server_args.py`), whose 1.5 MiB a prefill token is replaced by the
    widest tensors of these models.
    """
    graphs = 2 * MIB * (512 if engine.gpus >= 4 else 256)
    widest = max(part.prefill(engine) for part in shape.parts)
    return 1.5 * GIB + graphs + engine.gpus / 8 * GIB + prefill * (8 * shape.hidden + widest)


def read_bytes(shape: Shape, batch: float) -> float:
    """Return the bytes of weights that one decoding step of an engine reads: all but the look-up of `batch` embeddings,
    and experts that none of these requests chose."""
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
    """Return the seconds of one decoding step of one engine: what reading takes, or computing where that is longer, and
    a floor of `layer_latency` seconds a layer for launches and communication.

    bandwidth, flops: of one GPU, as reached. Heads that are replicated are read by each GPU that has them.
    """
    requests = batch * engine.attention_gpus / engine.gpus  # of one GPU
    cache = requests * (context * shape.cache(engine) + 2 * shape.state(engine))  # a state is written too
    read = (read_bytes(shape, batch) / engine.gpus + cache) / bandwidth
    compute = batch * 2 * shape.active_parameters / (engine.gpus * flops)
    return max(read, compute) + len(shape.layers) * layer_latency
