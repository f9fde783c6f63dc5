"""Attention whose cache grows with the context: its heads share fewer key/value heads.

Activations start from table 2 of Korthikanti et al. 2022, with flash attention, whose softmax is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from slime_swe.recipes.layers import WEIGHT_BYTES, Linear, Part
from slime_swe.recipes.layout import Cut, Layout, SglangEngine, Shard


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
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    def shard(self, layout: Layout) -> Shard:
        """Norms are on every GPU of a tensor-parallel group. Key/value heads are cut even where there are more GPUs,
        and put together again. Source: Megatron-LM `core/transformer/attention.py`, `get_query_key_value_tensors`."""
        projected = self.queries * (2 if self.output_gate else 1) + 2 * self.keys
        weights = self.hidden * (projected + self.queries) + projected * self.qkv_bias
        return Shard(dense=weights / layout.tp + 2 * self.head_dim * self.qk_norm + self.hidden)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """The fused projection (q + 2k, of which the values are a view), queries and keys after rotation, the output,
        one more copy of the queries where they have a norm, and 4 bytes a head of softmax statistics, which alone are
        saved by recomputing the core. A gate: its part of the projection, its sigmoid in fp32, and the product."""
        statistics = 0 if selective else 4 * self.heads
        normed = 2 * self.queries * self.qk_norm
        gate = 8 * self.queries * self.output_gate
        return (self.norm_bytes + 6 * self.queries + 6 * self.keys + normed + gate + statistics) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Gradients of the output, q, k, v, a gate; the kernel sums dq in fp32."""
        gate = 4 * self.queries * self.output_gate
        return self.gathered_bytes + (8 * self.queries + 4 * self.keys + gate) / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        """Where there is a gate, Megatron-LM cuts it wrongly among more GPUs than KV heads (slime#2221)."""
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
        """Keys and values; no more GPUs share them than there are heads."""
        return 2 * WEIGHT_BYTES * self.keys / min(engine.attention_gpus, self.kv_heads)

    def engine_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("attention"),)

    def flops(self, length: float) -> float:
        """Two a weight, and causal attention: half of 4 x width x length."""
        return 2 * self.active + 2 * self.queries * length

    def _heads(self, way: str) -> Cut:
        what = f"{self.heads} attention heads and {self.kv_heads} KV heads"
        return Cut(way, what, self.heads, self.kv_heads)
