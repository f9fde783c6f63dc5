"""A recipe -> how much its run does at once: episodes, as many as the KV caches of its engines hold, and sandboxes.

What one engine's cache holds is the planner's arithmetic (`serving.py`). The run gets it as `args.swe_cached_episodes`;
its player, the plan and the plan's simulation make the same of it, by `rollout.scheduling.admission.bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from slime_swe.launch.plan import Assumptions
from slime_swe.launch.plan.serving import cache_tokens, engines, running_requests
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS
from slime_swe.rollout.scheduling.admission import Bounds, bounds
from slime_swe.sandbox.pool import make_backend

MOST_SHARE = 4  # times what the caches hold by the plan: where no number is given, a run admits no more than this
UNKNOWN = 64.0  # episodes that a server which runs already is taken to hold: nobody says what GPUs it has
PER_CORE = 2
"""While the episode of one sandbox waits for the model, another's commands can have the core. By the planner a step
gets no more than a tenth shorter with any other number (test_there_are_as_many_sandboxes_as_help)."""


@dataclass(frozen=True)
class Episodes:
    """An episode as it is assumed or forecast, on average: `length` tokens at the end, `sampled` of them by the policy
    in `turns` model calls."""

    length: float
    sampled: float
    turns: float


def episodes_of(recipe: Recipe, assumed: Assumptions) -> Episodes:
    rollout, forecast = recipe.rollout, recipe.forecast
    length = (assumed.context or forecast.context) * rollout.max_context
    turns = max((assumed.turns or forecast.turns) * rollout.max_turns, 1.0)
    return Episodes(length, min((assumed.sampled or forecast.sampled) * length, turns * rollout.max_response), turns)


def informative(recipe: Recipe, assumed: Assumptions) -> float:
    """Return the share of the groups that are trained."""
    expected = recipe.informative.expected
    return expected if expected == 1 else assumed.informative or expected


def cached_episodes(recipe: Recipe, assumed: Assumptions | None = None) -> float:
    """Return how many episodes of mean length one engine's KV cache, and its states of linear attention, hold; at least
    one. 0 where nothing is served on GPUs: other servers have no cache that the planner counts."""
    if recipe.cluster.gpu not in GPUS:
        return 0.0
    if recipe.serving.external_engines:
        return UNKNOWN
    held = cache_tokens(recipe) / episodes_of(recipe, assumed or Assumptions()).length
    return max(min(held, running_requests(recipe)), 1.0)


def most_an_engine(recipe: Recipe, assumed: Assumptions | None = None) -> int:
    """Return `serving.concurrency`; where that is 0, `MOST_SHARE` times what an engine's cache holds."""
    return recipe.serving.concurrency or ceil(MOST_SHARE * cached_episodes(recipe, assumed))


def bounds_of(recipe: Recipe, assumed: Assumptions | None = None) -> Bounds:
    """Return the bounds of the number of episodes that the run plays at once, on all engines together."""
    return bounds(most_an_engine(recipe, assumed), cached_episodes(recipe, assumed), engines(recipe))


def sandboxes_at_once(recipe: Recipe) -> int:
    """Return `rollout.sandbox_concurrency`; where that is 0, `PER_CORE` for each core that they have."""
    stated = recipe.rollout.sandbox_concurrency
    return stated or PER_CORE * recipe.cluster.cpus_per_node * sandbox_nodes(recipe)


def sandbox_nodes(recipe: Recipe) -> int:
    """Count the machines with sandboxes: all of the cluster, also those that only serve, under `ray:BACKEND`; else
    1."""
    cluster = recipe.cluster
    if not make_backend(recipe.rollout.sandbox).wraps:
        return 1
    return cluster.nodes + ceil(cluster.rollout_gpus / cluster.gpus_per_node if cluster.gpus_per_node else 0)
