"""`Architecture`: the shape of a model, as its Hugging Face `config.json` states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

FAMILIES = {
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
    "qwen3_moe": {"qkv_bias": False, "qk_norm": True},
}


@dataclass(frozen=True)
class Architecture:
    """A decoder with rotary positions, RMS norm, gated feed-forward layers and grouped-query attention.

    family: `model_type` of the config: `qwen2`, `qwen3` or `qwen3_moe`.
    layers, hidden, ffn: depth, width, and width of a dense feed-forward layer.
    heads, kv_heads, head_dim: query heads, key/value heads, and width of one head.
    vocab: rows of the embedding table, its padding in the checkpoint included.
    tied: the output projection is the embedding table.
    rope_theta, rms_eps: rotary base, and epsilon of the norms.
    qkv_bias, qk_norm: biases of the attention's input projections; norms of queries and keys.
    max_context: tokens that the checkpoint was trained for.
    experts, experts_per_token, expert_ffn: routed experts of a layer, how many see one token, and width of one; 0
        experts is a dense model. Every layer has experts or none has.
    """

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    rope_theta: float
    rms_eps: float
    qkv_bias: bool
    qk_norm: bool
    max_context: int
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0

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


def from_hf_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` states. Raises `ValueError` where we know no such family."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type is {family!r}: it must be one of {', '.join(FAMILIES)}")
    heads = config["num_attention_heads"]
    mixture = family == "qwen3_moe"
    return Architecture(
        family=family,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        ffn=config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        tied=config.get("tie_word_embeddings", False),
        rope_theta=float(_rope_theta(config)),
        rms_eps=float(config["rms_norm_eps"]),
        max_context=config["max_position_embeddings"],
        experts=config["num_experts"] if mixture else 0,
        experts_per_token=config["num_experts_per_tok"] if mixture else 0,
        expert_ffn=config["moe_intermediate_size"] if mixture else 0,
        **FAMILIES[family],
    )


def _rope_theta(config: Mapping[str, Any]) -> float:
    """transformers 5 moved it into `rope_parameters`."""
    return (config.get("rope_parameters") or config)["rope_theta"]  # type: ignore[no-any-return]


def differences(stated: Architecture, found: Architecture) -> dict[str, tuple[Any, Any]]:
    """Field -> what a recipe states and what the checkpoint's config says, where these differ."""
    pairs = {field.name: (getattr(stated, field.name), getattr(found, field.name)) for field in fields(Architecture)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
