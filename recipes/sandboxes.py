"""On how many machines a recipe's sandboxes are, and how many are open at once."""

from __future__ import annotations

from math import ceil

from slime_swe.recipes.base import Recipe
from slime_swe.rollout.sandbox.pool import make_backend

PER_CORE = 2
"""While the episode of one sandbox waits for the model, another's commands can have the core. By the planner a step
gets no more than a tenth shorter with any other number (test_there_are_as_many_sandboxes_as_help)."""


def sandboxes_at_once(recipe: Recipe) -> int:
    """`rollout.sandbox_concurrency`; where that is 0, `PER_CORE` for each core that they have."""
    stated = recipe.rollout.sandbox_concurrency
    return stated or PER_CORE * recipe.cluster.cpus_per_node * sandbox_nodes(recipe)


def sandbox_nodes(recipe: Recipe) -> int:
    """All of the cluster's machines under `ray:BACKEND`, those that only serve among them; else one."""
    cluster = recipe.cluster
    if not make_backend(recipe.rollout.sandbox).wraps:
        return 1
    return cluster.nodes + ceil(cluster.rollout_gpus / cluster.gpus_per_node if cluster.gpus_per_node else 0)
