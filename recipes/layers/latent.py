"""Latent attention: keys and values are projected up from one small vector a token, which is all that is cached.

Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1; Megatron-LM `core/transformer/multi_latent_attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from slime_swe.recipes.layers import WEIGHT_BYTES, Part
from slime_swe.recipes.layout import Cut, Layout, SglangEngine, Shard


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
        """Width of the queries, and of the keys once projected up."""
        return self.heads * (self.plain_dim + self.rotary_dim)

    @property
    def outputs(self) -> int:
        """Width of the values, and of the output."""
        return self.heads * self.value_dim

    @property
    def latent(self) -> int:
        """Of keys and values: the latent, and the rotary part of the key, which all heads share."""
        return self.cache_rank + self.rotary_dim

    @property
    def replicated(self) -> int:
        """Parameters that no GPUs share: projections to the latents, and their norms."""
        return self.hidden * (self.query_rank + self.latent) + self.query_rank + self.cache_rank

    @property
    def projected_up(self) -> int:
        """Width of keys without positions, and values."""
        return self.heads * (self.plain_dim + self.value_dim)

    @property
    def of_heads(self) -> int:
        """Parameters that GPUs share by heads: projections from the latents, and that of the output."""
        return (
            (self.query_rank or self.hidden) * self.queries
            + self.cache_rank * self.projected_up
            + self.outputs * self.hidden
        )

    def shard(self, layout: Layout) -> Shard:
        return Shard(dense=self.of_heads / layout.tp + self.replicated + self.hidden)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Each latent before and after its norm, on every GPU; queries and projected keys and values, queries and keys
        again with positions, the output, and 4 bytes a head of softmax statistics."""
        latents = 2 * WEIGHT_BYTES * (self.query_rank + self.latent)
        heads = 6 * self.queries + 2 * self.projected_up + 2 * self.outputs
        statistics = 0 if selective else 4 * self.heads
        return latents + (self.norm_bytes + heads + statistics) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Gradients of the output, q, k and v; the kernel sums dq in fp32."""
        return self.gathered_bytes + (8 * self.queries + 4 * self.outputs) / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("tp"),)

    def served(self, engine: SglangEngine) -> float:
        return self.of_heads / engine.attention_gpus + self.replicated + self.hidden

    def cache(self, engine: SglangEngine) -> float:
        """The latent, whole on each GPU that attends to the request: tensor parallelism does not make it smaller."""
        return WEIGHT_BYTES * self.latent

    def engine_cuts(self) -> tuple[Cut, ...]:
        return (self._heads("attention"),)

    def flops(self, length: float) -> float:
        """Two a weight, and causal attention: half of 2 x (width of keys + width of values) x length."""
        return 2 * self.active + (self.queries + self.outputs) * length

    def _heads(self, way: str) -> Cut:
        return Cut(way, f"{self.heads} attention heads", self.heads)
