"""HumanEval's 164 functions, four fifths of them to train on. A policy that has seen these has no HumanEval score: for
one, evaluate on `humaneval:test` what was trained on other tasks."""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe

_CONTEXT = 1536  # tokens: the longest prompt has 1,079 with the tiny recipe's tokenizer


def adapted(recipe: Recipe) -> Recipe:
    data = replace(
        recipe.data,
        train=["humaneval:test?part=0-0.8"],
        weights=[],
        filters={},
        eval={"heldout": "humaneval:test?part=0.8-1"},
    )
    context = max(recipe.rollout.max_context, _CONTEXT)
    return replace(recipe, data=data, rollout=replace(recipe.rollout, max_context=context))
