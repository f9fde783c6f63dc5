"""The shape of one rank of a recipe's training job, as a model of its own, and what the planner says of it. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from slime_swe.launch.plan.assumptions import Assumptions
from slime_swe.launch.plan.formulae import padded_vocab
from slime_swe.launch.plan.memory import budgets
from slime_swe.recipes.base import Architecture, Cluster, Parallel, Recipe

GPU = "H200-141GB"
SLACK = 0.85  # of the GPU's memory that a plan may take before layers are cut
EXACT = Assumptions(skew=1.0, fragmentation=0.0, context_gib=0.0, margin=0.0)
TINY: dict[str, Any] = {"layers": 2, "hidden": 64, "ffn": 96, "vocab": 512, "head_dim": 16}
TINY_EXPERTS: dict[str, Any] = {"experts": 4, "experts_per_token": 2, "expert_ffn": 32}
TINY_TOKENS, TINY_RATE = 256, 1e-2


def rank_shape(architecture: Architecture, parallel: Parallel, layers: int | None = None) -> Architecture:
    """What one rank holds, as a model of its own; `layers` cuts its depth.

    A rank's experts see tokens * k * etp / tp rows: so many experts a token here.
    """
    parts = parallel.tp
    routed = max(1, architecture.experts_per_token * parallel.etp // parts) if architecture.experts else 0
    return dataclasses.replace(
        architecture,
        layers=layers or architecture.layers // parallel.pp,
        ffn=architecture.ffn // parts,
        heads=architecture.heads // parts,
        kv_heads=max(1, architecture.kv_heads // parts),
        vocab=padded_vocab(architecture.vocab, parts) // parts,
        experts=architecture.experts // parallel.ep,
        experts_per_token=min(routed, architecture.experts // parallel.ep),
        expert_ffn=architecture.expert_ffn // parallel.etp,
    )


def sequence_lengths(tokens: int) -> list[int]:
    """Of one packed micro-batch: a half, a quarter, an eighth, and two sixteenths or what is left."""
    lengths = [tokens >> shift for shift in range(1, 5)]
    return [*lengths, tokens - sum(lengths)]


def alone(recipe: Recipe, shape: Architecture, gpu: str) -> Recipe:
    """`recipe` as the planner sees it when one GPU is all there is, and the rank's shape is the model."""
    parallel = recipe.parallel
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, architecture=shape),
        cluster=Cluster(nodes=1, gpus_per_node=1, gpu=gpu, colocate=False),
        parallel=Parallel(max_tokens_per_gpu=parallel.max_tokens_per_gpu, recompute=parallel.recompute),
        optimizer=dataclasses.replace(recipe.optimizer, cpu_offload=False),
    )


def plan_memory(recipe: Recipe, shape: Architecture) -> dict[str, float]:
    training = budgets(alone(recipe, shape, GPU), EXACT)[0]
    return {part.name: part.bytes for part in training.components if part.bytes}


def fitting(recipe: Recipe, memory: float) -> Architecture:
    """The rank's shape with as many of its layers as the planner lets into `memory` bytes."""
    shape = rank_shape(recipe.model.architecture, recipe.parallel)
    while shape.layers > 1 and sum(plan_memory(recipe, shape).values()) > SLACK * memory:
        shape = dataclasses.replace(shape, layers=shape.layers - 1)
    return shape


def tiny(recipe: Recipe) -> tuple[Recipe, Architecture]:
    """The same kind of model, of a size for a CPU, and a learning rate at which it learns one batch by heart."""
    shape = rank_shape(recipe.model.architecture, recipe.parallel)
    changes = TINY | (TINY_EXPERTS if shape.experts else {})
    parallel = dataclasses.replace(recipe.parallel, max_tokens_per_gpu=TINY_TOKENS)
    optimizer = dataclasses.replace(recipe.optimizer, lr=TINY_RATE, clip_grad=1.0)
    return dataclasses.replace(recipe, parallel=parallel, optimizer=optimizer), dataclasses.replace(shape, **changes)
