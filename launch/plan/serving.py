"""Bytes of one SGLang engine's GPUs, and how fast they sample. Pure arithmetic.

An engine spreads one copy of the model over `gpus` by tensor parallelism. Invariants, which tests hold: the cache of a
token does not grow with the GPUs of an engine, and all GPUs together hold each of its heads at least once; sampling
gets no faster when there is more to read.
"""

from __future__ import annotations

from dataclasses import dataclass

from slime_swe.launch.plan.formulae import GIB, WEIGHT_BYTES, expert_parameters
from slime_swe.recipes.architecture import Architecture

MIB = 2**20


@dataclass(frozen=True)
class SglangEngine:
    """gpus: of one engine. dp_attention: each GPU attends for its own requests, with whole attention weights."""

    gpus: int
    dp_attention: bool = False

    def cache_gpus(self, architecture: Architecture) -> int:
        """GPUs that share one token's cache: no more than there are key/value heads to share out."""
        return 1 if self.dp_attention else min(self.gpus, architecture.kv_heads)


def kv_bytes(architecture: Architecture) -> int:
    """bf16 keys and values of one token, in all layers."""
    return 2 * WEIGHT_BYTES * architecture.layers * architecture.kv_heads * architecture.head_dim


def kv_bytes_per_gpu(architecture: Architecture, engine: SglangEngine) -> float:
    """Of one token, on a GPU that holds part of it. Heads are replicated where an engine has more GPUs than heads."""
    return kv_bytes(architecture) / engine.cache_gpus(architecture)


def capacity(architecture: Architecture, engine: SglangEngine, pool: float) -> int:
    """Tokens that one engine's cache holds, with `pool` bytes on each of its GPUs."""
    groups = engine.gpus if engine.dp_attention else 1
    return int(groups * max(pool, 0.0) / kv_bytes_per_gpu(architecture, engine))


def weight_bytes(architecture: Architecture, engine: SglangEngine) -> float:
    """bf16 weights on one GPU of an engine: experts and feed-forward layers are sharded, norms are not; attention and
    the embedding table are whole on each GPU under data-parallel attention.

    Source: SGLang `srt/layers/vocab_parallel_embedding.py` and `srt/layers/dp_attention.py`.
    """
    tables = 1 if architecture.tied else 2
    table = architecture.vocab * architecture.hidden
    experts = architecture.layers * expert_parameters(architecture)
    attention = architecture.layers * architecture.attention_parameters
    sharded = architecture.parameters - attention - tables * table
    whole = attention + table if engine.dp_attention else 0
    spread = sharded + (tables - 1) * table if engine.dp_attention else architecture.parameters
    assert sharded >= experts, (sharded, experts)
    return WEIGHT_BYTES * (whole + spread / engine.gpus)


def runtime_bytes(architecture: Architecture, engine: SglangEngine, prefill: int) -> float:
    """What an engine needs beside weights and cache: CUDA context and attention workspace (1.5 GiB), graphs (2 MiB for
    each of 256 batch sizes, 512 from 4 GPUs on), 1/8 GiB a GPU of the engine for communication, and the activations of
    one prefill chunk of `prefill` tokens.

    Source: the terms of SGLang's own estimate (`srt/server_args.py`), whose 1.5 MiB a prefill token is replaced by the
    widest tensors of these models.
    """
    graphs = 2 * MIB * (512 if engine.gpus >= 4 else 256)
    routed = architecture.experts_per_token * (4 * architecture.hidden + 6 * architecture.expert_ffn / engine.gpus)
    widest = routed if architecture.experts else 6 * architecture.ffn / engine.gpus
    return 1.5 * GIB + graphs + engine.gpus / 8 * GIB + prefill * (8 * architecture.hidden + widest)


def read_bytes(architecture: Architecture, batch: float, context: float) -> float:
    """What one decoding step of an engine reads: weights, and the cache of `batch` requests of `context` tokens.

    Of a mixture, a layer's experts that no token of the batch chose are not read: with even routing a share
    (1 - k/E)^batch of them.
    """
    weights = WEIGHT_BYTES * (
        architecture.parameters - (0 if architecture.tied else architecture.vocab * architecture.hidden)
    )
    if architecture.experts:
        unused = (1 - architecture.experts_per_token / architecture.experts) ** batch
        weights -= WEIGHT_BYTES * unused * architecture.layers * expert_parameters(architecture)
    return weights + batch * context * kv_bytes(architecture)


def decode_seconds(
    architecture: Architecture,
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
    replicas = 1 if engine.dp_attention else engine.gpus / engine.cache_gpus(architecture)
    cache = batch * context * kv_bytes(architecture)
    read = (read_bytes(architecture, batch, 0) + cache * replicas) / (engine.gpus * bandwidth)
    compute = batch * 2 * architecture.active_parameters / (engine.gpus * flops)
    return max(read, compute) + architecture.layers * layer_latency
