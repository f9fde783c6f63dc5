"""Toy shapes of a family, and the `config.json` of a model of any shape."""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.base import Architecture
from slime_swe.recipes.families import KEYS, Family, load_family


def toy(family: Family) -> Architecture:
    """A model of this family that is small enough for a test."""
    experts = {"experts": 8, "experts_per_token": 2, "expert_ffn": 32} if family.expert_keys else {}
    return Architecture(
        family=family.model_type,
        layers=2,
        hidden=64,
        ffn=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        vocab=512,
        tied=not experts,
        rope_theta=1e6,
        rms_eps=1e-6,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        max_context=2048,
        **experts,
    )


def config_of(shape: Architecture) -> dict[str, Any]:
    """The `config.json` of a model of this shape: what the family reads back."""
    family = load_family(shape.family)
    return {
        "model_type": family.model_type,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_eps,
        **{key: getattr(shape, name) for name, key in {**KEYS, **family.expert_keys}.items()},
        **family.required,
    }
