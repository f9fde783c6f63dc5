"""A recipe -> how many episodes its run plays at once: as many as the KV caches of its engines hold.

What one engine's cache holds is the planner's arithmetic. The run gets it as `args.swe_cached_episodes`; its player,
the plan and the plan's simulation make the same of it, by `rollout.scheduling.admission.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slime_swe.launch.plan import serving
from slime_swe.launch.plan.assumptions import Assumptions
from slime_swe.launch.plan.formulae import GIB
from slime_swe.launch.plan.trained import served_bytes
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layout import SglangEngine
from slime_swe.rollout.scheduling.admission import Bounds, bounds

MOST_SHARE = 4  # times what the caches hold by the plan: where no number is given, a run admits no more than this
UNKNOWN = 64.0  # episodes that a server which runs already is taken to hold: nobody says what GPUs it has


@dataclass(frozen=True)
class Episodes:
    """What is assumed or forecast, on average: `length` tokens at the end, `sampled` of them by the policy in `turns`
    model calls."""

    length: float
    sampled: float
    turns: float


def episodes_of(recipe: Recipe, assumed: Assumptions) -> Episodes:
    rollout, forecast = recipe.rollout, recipe.forecast
    length = (assumed.context or forecast.context) * rollout.max_context
    turns = max((assumed.turns or forecast.turns) * rollout.max_turns, 1.0)
    return Episodes(length, min((assumed.sampled or forecast.sampled) * length, turns * rollout.max_response), turns)


def informative(recipe: Recipe, assumed: Assumptions) -> float:
    """Share of the groups that are trained."""
    expected = recipe.informative.expected
    return expected if expected == 1 else assumed.informative or expected


def sglang_engine(recipe: Recipe) -> SglangEngine:
    serving = recipe.serving
    return SglangEngine(max(serving.gpus_per_engine, 1), serving.dp_attention, mixture=bool(recipe.model.shape.experts))


def engines(recipe: Recipe) -> int:
    """Copies of the model that sample."""
    if recipe.serving.external_engines:
        return len(recipe.serving.external_engines)
    return max(recipe.cluster.serve_gpus // sglang_engine(recipe).gpus, 1)


def cache_pool(recipe: Recipe) -> float:
    """Bytes of KV cache on one serving GPU: SGLang's static share of the GPU, less weights and an adapter.

    Source: SGLang `srt/model_executor/model_runner_kv_cache_mixin.py`; SLiME starts its engines on empty GPUs.
    """
    static = recipe.serving.mem_fraction * GPUS[recipe.cluster.gpu].memory * GIB
    engine = sglang_engine(recipe)
    return static - serving.weight_bytes(recipe.model.shape, engine) - served_bytes(recipe)


def cache_tokens(recipe: Recipe) -> int:
    """Tokens that one engine's KV cache holds."""
    return serving.capacity(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


def running_requests(recipe: Recipe) -> float:
    """Requests whose states of fixed size one engine holds."""
    return serving.running(recipe.model.shape, sglang_engine(recipe), cache_pool(recipe))


def cached_episodes(recipe: Recipe, assumed: Assumptions | None = None) -> float:
    """Episodes of mean length that one engine's KV cache, and its states of linear attention, hold; at least one. 0
    where nothing is served on GPUs: other servers have no cache that the planner counts."""
    if recipe.cluster.gpu not in GPUS:
        return 0.0
    if recipe.serving.external_engines:
        return UNKNOWN
    held = cache_tokens(recipe) / episodes_of(recipe, assumed or Assumptions()).length
    return max(min(held, running_requests(recipe)), 1.0)


def most_an_engine(recipe: Recipe, assumed: Assumptions | None = None) -> int:
    """`serving.concurrency`; where that is 0, `MOST_SHARE` times what an engine's cache holds."""
    return recipe.serving.concurrency or math.ceil(MOST_SHARE * cached_episodes(recipe, assumed))


def bounds_of(recipe: Recipe, assumed: Assumptions | None = None) -> Bounds:
    """Episodes that the run plays at once, on all engines together."""
    return bounds(most_an_engine(recipe, assumed), cached_episodes(recipe, assumed), engines(recipe))
