"""Aider's polyglot benchmark in the languages whose toolchain is here, four fifths of it to train on. A policy that has
seen these has no score on the benchmark. Two tries, as in Aider's own runs."""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe

_CONTEXT = 16_384  # tokens, or what the model has positions for


def adapted(recipe: Recipe) -> Recipe:
    data = replace(
        recipe.data,
        train=["polyglot:all?part=0-0.8"],
        weights=[],
        filters={},
        eval={"heldout": "polyglot:all?part=0.8-1"},
    )
    context = min(_CONTEXT, recipe.model.config.get("max_position_embeddings", 0))
    rollout = replace(recipe.rollout, tries=2, max_context=max(recipe.rollout.max_context, context))
    return replace(recipe, data=data, rollout=rollout)
