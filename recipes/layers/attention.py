"""Attention whose cache grows with the context: its heads share fewer key/value heads.

Activations start from table 2 of Korthikanti et al. 2022, with flash attention, whose softmax is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from slime_swe.recipes.layers import WEIGHT_BYTES, Cut, Layout, Linear, Part, SglangEngine, Shard


@dataclass(frozen=True)
class GroupedAttention(Part):
    """Grouped-query attention.

    heads, kv_heads: of queries, and of keys and values.
    head_dim: size of one head.
    qkv_bias: the input projections have biases.
    qk_norm: queries and keys have norms.
    output_gate: the output is multiplied with a sigmoid, as wide as the queries and projected beside them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    def shard(self, layout: Layout) -> Shard:
        """Count parameters. Norms are on every GPU of a tensor-parallel group. Key/value heads are cut even where there
        are more GPUs, and put together again. Source: Megatron-LM `core/transformer/attention.py`,
        `get_query_key_value_tensors`."""
        projected = self.queries * (2 if self.output_gate else 1) + 2 * self.keys
        weights = self.hidden * (projected + self.queries) + projected * self.qkv_bias
        return Shard(dense=weights / layout.tp + 2 * self.head_dim * self.qk_norm + self.hidden)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Add up the fused projection (q + 2k, of which the values are a view), queries and keys after rotation, the
        output, one more copy of the queries where they have a norm, and 4 bytes a head of softmax statistics, which
        alone are saved by recomputing the core. A gate adds its part of the projection, its sigmoid in fp32, and the
        product."""
        statistics = 0 if selective else 4 * self.heads
        normed = 2 * self.queries * self.qk_norm
        gate = 8 * self.queries * self.output_gate
        return (self.norm_bytes + 6 * self.queries + 6 * self.keys + normed + gate + statistics) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Add up the gradients of the output, q, k, v, a gate; the kernel sums dq in fp32."""
        gate = 4 * self.queries * self.output_gate
        return self.gathered_bytes + (8 * self.queries + 4 * self.keys + gate) / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        """Return the cut of the heads. Megatron-LM cuts a gate wrongly among more GPUs than KV heads (slime#2221)."""
        if not self.output_gate:
            return (self._heads("tp"),)
        what = f"{self.heads} gated attention heads among more GPUs than their {self.kv_heads} KV heads"
        return (Cut("tp", what, gcd(self.heads, self.kv_heads)),)

    def linears(self) -> tuple[Linear, ...]:
        projected = self.queries * (2 if self.output_gate else 1) + 2 * self.keys
        return Linear("linear_qkv", self.hidden, projected, fused=3), Linear("linear_proj", self.queries, self.hidden)

    def served(self, engine: SglangEngine) -> float:
        return (self.parameters - self.hidden) / engine.attention_gpus + self.hidden / engine.gpus

    def cache(self, engine: SglangEngine) -> float:
        """Return the bytes of keys and values; no more GPUs share them than there are heads."""
        return 2 * WEIGHT_BYTES * self.keys / min(engine.attention_gpus, self.kv_heads)

    def engine_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("attention"),)

    def flops(self, length: float) -> float:
        """Count two operations a weight, and causal attention: half of 4 x width x length."""
        return 2 * self.active + 2 * self.queries * length

    def _heads(self, way: str) -> Cut:
        what = f"{self.heads} attention heads and {self.kv_heads} KV heads"
        return Cut(way, what, self.heads, self.kv_heads)


# Latent attention: keys and values are projected up from one small vector a token, which is all that is cached.
#
# Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1; Megatron-LM `core/transformer/multi_latent_attention.py`.
@dataclass(frozen=True)
class LatentAttention(Part):
    """Multi-head latent attention, and a norm of each latent.

    heads: attention heads; keys and values have as many.
    query_rank, cache_rank: sizes of the latent of the queries, and of that of keys and values. Without the first, which
        is 0 then, queries are projected from the input.
    plain_dim, rotary_dim: sizes of the parts of a query or key without and with a position.
    value_dim: size of one head's values.
    """

    heads: int
    query_rank: int
    cache_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def queries(self) -> int:
        """The width of the queries, and of the keys once projected up."""
        return self.heads * (self.plain_dim + self.rotary_dim)

    @property
    def outputs(self) -> int:
        """The width of the values, and of the output."""
        return self.heads * self.value_dim

    @property
    def latent(self) -> int:
        """The width of what is cached: the latent, and the rotary part of the key, which all heads share."""
        return self.cache_rank + self.rotary_dim

    @property
    def replicated(self) -> int:
        """The parameters that no GPUs share: projections to the latents, and their norms."""
        return self.hidden * (self.query_rank + self.latent) + self.query_rank + self.cache_rank

    @property
    def projected_up(self) -> int:
        """The width of keys without positions, and values."""
        return self.heads * (self.plain_dim + self.value_dim)

    @property
    def of_heads(self) -> int:
        """The parameters that GPUs share by heads: projections from the latents, and that of the output."""
        return (
            (self.query_rank or self.hidden) * self.queries
            + self.cache_rank * self.projected_up
            + self.outputs * self.hidden
        )

    def shard(self, layout: Layout) -> Shard:
        return Shard(dense=self.of_heads / layout.tp + self.replicated + self.hidden)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Add up each latent before and after its norm, on every GPU; queries and projected keys and values, queries
        and keys again with positions, the output, and 4 bytes a head of softmax statistics."""
        latents = 2 * WEIGHT_BYTES * (self.query_rank + self.latent)
        heads = 6 * self.queries + 2 * self.projected_up + 2 * self.outputs
        statistics = 0 if selective else 4 * self.heads
        return latents + (self.norm_bytes + heads + statistics) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Add up the gradients of the output, q, k and v; the kernel sums dq in fp32."""
        return self.gathered_bytes + (8 * self.queries + 4 * self.outputs) / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("tp"),)

    def served(self, engine: SglangEngine) -> float:
        return self.of_heads / engine.attention_gpus + self.replicated + self.hidden

    def cache(self, engine: SglangEngine) -> float:
        """Return the bytes of the latent, whole on each GPU that attends to the request: tp does not make it
        smaller."""
        return WEIGHT_BYTES * self.latent

    def engine_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("attention"),)

    def flops(self, length: float) -> float:
        """Count two a weight, and causal attention: half of 2 x (width of keys + width of values) x length."""
        return 2 * self.active + (self.queries + self.outputs) * length

    def _heads(self, way: str) -> Cut:
        return Cut(way, f"{self.heads} attention heads", self.heads)


# Linear attention: a state of fixed size stands for all earlier tokens.
CHUNK = 64  # tokens that flash-linear-attention's kernels take at once
STATE_BYTES = 4  # fp32, SGLang's default of --mamba-ssm-dtype


@dataclass(frozen=True)
class GatedDeltaNet(Part):
    """A gated delta rule behind a short convolution (Yang et al. 2024, arXiv:2412.06464).

    key_heads, key_dim: heads of queries and of keys, and the size of one.
    value_heads, value_dim: heads of values, a multiple of `key_heads`, and the size of one.
    kernel: tokens that the convolution takes.

    SLiME computes it in the Hugging Face layout, whole and for whole sequences, on every GPU of a tensor and context
    parallel group (`slime_plugins/models/hf_attention.py`), so that nothing of it is divided by tp, and a GPU has
    cp tokens of it for each of its own. SGLang divides its heads. Its gradients under context parallelism are wrong
    without `context_parallel_init`.
    """

    context_parallel_init: ClassVar[str] = "slime_swe.launch.slime.linear_attention.sum_gradients"
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """The width of the queries, and of the keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """The width of the values, of the gate and of the output."""
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        return 2 * self.keys + self.values

    def shard(self, layout: Layout) -> Shard:
        """Count projections of queries, keys, values, gate, two numbers a head; convolution, two biases a head,
        norms."""
        projections = self.hidden * (self.convolved + 2 * self.values + 2 * self.value_heads)
        small = self.convolved * self.kernel + 2 * self.value_heads + self.value_dim + self.hidden
        return Shard(dense=projections + small)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Add up, from the code and not measured: the norm's input and output in fp32, and that in bf16 (10h); the
        convolution's input; values and gate; normed queries and keys, repeated to as many heads as the values have; the
        decays, their products in each chunk, and others of a head; the output before and after its norm.

        Source: SLiME `slime_plugins/models/qwen3_next.py`; flash-linear-attention `ops/gated_delta_rule/chunk.py`,
        `ChunkGatedDeltaRuleFunction`.
        """
        repeated = 2 * WEIGHT_BYTES * self.value_heads * self.key_dim
        of_heads = (2 * CHUNK + 24) * self.value_heads
        wide = self.convolved + 4 * self.values
        return layout.cp * (10 * self.hidden + WEIGHT_BYTES * wide + repeated + of_heads)

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Add up the states at the ends of the chunks and their gradients, and gradients of queries, keys and values
        with the kernels' own copies of these."""
        states = 2 * WEIGHT_BYTES * self.value_heads * self.key_dim * self.value_dim / CHUNK
        wide = 3 * self.value_heads * self.key_dim + 5 * self.values
        return layout.cp * (self.gathered_bytes + states + WEIGHT_BYTES * wide)

    def copies(self, layout: Layout) -> int:
        return layout.tp * layout.cp

    def served(self, engine: SglangEngine) -> float:
        return (self.parameters - self.hidden) / engine.attention_gpus + self.hidden / engine.gpus

    def state(self, engine: SglangEngine) -> float:
        """Add up the convolution's last inputs and each head's matrix. Source: SGLang `srt/configs/mamba_utils.py`."""
        inputs = WEIGHT_BYTES * self.convolved * (self.kernel - 1)
        return (inputs + STATE_BYTES * self.values * self.key_dim) / engine.attention_gpus

    def engine_cuts(self) -> tuple[Cut, ...]:
        what = f"{self.key_heads} key heads and {self.value_heads} value heads of linear attention"
        return (Cut("attention", what, gcd(self.key_heads, self.value_heads)),)

    def flops(self, length: float) -> float:
        """Count two operations a weight; of each head, its state read twice and written once, and what a chunk's tokens
        do to each other: both as the chunks are multiplied."""
        states = 6 * self.key_dim * self.value_dim
        chunk = 4 * CHUNK * (self.key_dim + self.value_dim)
        return 2 * self.active + self.value_heads * (states + chunk)
