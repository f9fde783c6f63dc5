"""`Architecture`: the shape of a model, as its Hugging Face `config.json` states it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from recipes.violation import RecipeError

CONFIG = "config.json"
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


def read_architecture(folder: Path) -> Architecture:
    """What the folder's `config.json` states. Raises `RecipeError` where it can't be read or is of no model we know."""
    path = folder / CONFIG
    try:
        return from_hf_config(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise RecipeError(f"can't read {path}: {error.strerror}") from error
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}") from error


def from_hf_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` states. Raises `RecipeError` where a part of it is none that we know."""
    family = config.get("model_type") if isinstance(config, Mapping) else None
    if family not in FAMILIES:
        raise RecipeError(f"model_type is {family!r}: it must be one of {', '.join(FAMILIES)}")
    for key, given, allowed in _unlike(config, family):
        raise RecipeError(f"{key} is {given!r}, and only {allowed!r} can be trained")
    try:
        return _read(family, config)
    except KeyError as error:
        raise RecipeError(f"{error.args[0]!r} is missing: download the model again") from error


def _read(family: str, config: Mapping[str, Any]) -> Architecture:
    heads, mixture = config["num_attention_heads"], family == "qwen3_moe"
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
        rope_theta=float(_rope(config)["rope_theta"]),
        rms_eps=float(config["rms_norm_eps"]),
        max_context=config["max_position_embeddings"],
        experts=config["num_experts"] if mixture else 0,
        experts_per_token=config["num_experts_per_tok"] if mixture else 0,
        expert_ffn=config["moe_intermediate_size"] if mixture else 0,
        **FAMILIES[family],
    )


def _unlike(config: Mapping[str, Any], family: str) -> Iterator[tuple[str, Any, Any]]:
    """Key, value and the value that it must have, of every part that no `Architecture` can say."""
    scaling = config.get("rope_scaling") or _rope(config)
    parts = [
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("use_sliding_window", config.get("use_sliding_window", False), False),
        ("the type of rotary scaling", scaling.get("rope_type", scaling.get("type", "default")), "default"),
    ]
    if family != "qwen2":
        parts += [("attention_bias", config.get("attention_bias", False), False)]
    if family == "qwen3_moe":
        parts += [
            ("decoder_sparse_step", config.get("decoder_sparse_step", 1), 1),
            ("mlp_only_layers", config.get("mlp_only_layers") or [], []),
            ("norm_topk_prob", config.get("norm_topk_prob", False), True),
        ]
    return ((key, given, allowed) for key, given, allowed in parts if given != allowed)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 moved the rotary base into `rope_parameters`."""
    return config.get("rope_parameters") or config


def differences(stated: Architecture, found: Architecture) -> dict[str, tuple[Any, Any]]:
    """Field -> what a recipe states and what the checkpoint's config says, where these differ."""
    pairs = {field.name: (getattr(stated, field.name), getattr(found, field.name)) for field in fields(Architecture)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
