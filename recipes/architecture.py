"""`Architecture`: the shape of a model, as a recipe states it; `families/` reads it from a `config.json`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from slime_swe.recipes.fields import Count, Positive, Size


@dataclass(frozen=True)
class Architecture:
    """A decoder with rotary positions, RMS norm, gated feed-forward layers and grouped-query attention.

    family: `qwen2`, `qwen3`, `qwen3_moe`, or the dotted path of a `slime_swe.recipes.families.Family`.
    layers: number of layers.
    hidden: hidden size.
    ffn: width of a dense feed-forward layer.
    heads: query heads.
    kv_heads: key/value heads.
    head_dim: size of one attention head.
    vocab: rows of the embedding table, its padding in the checkpoint included.
    tied: the output projection is the embedding table.
    rope_theta: rotary base.
    rms_eps: epsilon of the norms.
    qkv_bias: the attention's input projections have biases.
    qk_norm: queries and keys have norms.
    max_context: tokens that the checkpoint was trained for.
    experts: routed experts of a layer; 0 is a dense model. Every layer has experts or none has.
    experts_per_token: experts that one token is routed to.
    expert_ffn: width of one expert.
    """

    family: str
    layers: Size
    hidden: Size
    ffn: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    vocab: Size
    tied: bool
    rope_theta: Positive
    rms_eps: Positive
    qkv_bias: bool
    qk_norm: bool
    max_context: Size
    experts: Count = 0
    experts_per_token: Count = 0
    expert_ffn: Count = 0

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention, its norms of queries and keys included."""
        projected = self.heads * self.head_dim
        shared = self.kv_heads * self.head_dim
        weights = self.hidden * (2 * projected + 2 * shared)
        biases = (projected + 2 * shared) * self.qkv_bias
        return weights + biases + 2 * self.head_dim * self.qk_norm

    @property
    def head_splits(self) -> list[int]:
        """Numbers of GPUs that can share attention."""
        return [size for size in range(1, self.heads + 1) if self.splits_heads(size)]

    def splits_heads(self, size: int) -> bool:
        """Whether so many GPUs can share attention: Megatron and SGLang copy KV heads where these are fewer."""
        return self.heads % size == 0 and (self.kv_heads % size == 0 or size % self.kv_heads == 0)

    @property
    def parameters(self) -> int:
        """All weights of the model."""
        return self._count(self.experts)

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets."""
        return self._count(self.experts_per_token)

    def _count(self, experts: int) -> int:
        """Weights, with so many experts a layer counted."""
        feed_forward = 3 * self.hidden * (self.expert_ffn * experts if self.experts else self.ffn)
        router = self.hidden * self.experts
        layer = self.attention_parameters + feed_forward + router + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden


def differences(stated: Architecture, found: Architecture) -> dict[str, tuple[Any, Any]]:
    """Field -> what a recipe states and what the checkpoint's config says, where these differ."""
    pairs = {field.name: (getattr(stated, field.name), getattr(found, field.name)) for field in fields(Architecture)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
