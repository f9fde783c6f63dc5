"""What a recipe trains on, by name: `task=NAME` turns a recipe for one model into the same for another kind of tasks.

A module of this folder is one kind: its `adapted(recipe)` is the recipe with the task sets, the prompt, the limits, the
reward and the group filter of that kind. Any importable module with an `adapted` works by its dotted path.
"""

from __future__ import annotations

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes.base import Recipe

TASKS = {
    "diff": "slime_swe.recipes.tasks.diff.adapted",
    "specification": "slime_swe.recipes.tasks.specification.adapted",
    "synthetic": "slime_swe.recipes.tasks.synthetic.adapted",
    "humaneval": "slime_swe.recipes.tasks.humaneval.adapted",
    "polyglot": "slime_swe.recipes.tasks.polyglot.adapted",
    "vulnerability": "slime_swe.recipes.tasks.vulnerability.adapted",
    "arc": "slime_swe.recipes.tasks.arc.adapted",
}


def with_task(recipe: Recipe, name: str) -> Recipe:
    """The recipe for another kind of tasks. Raises `UserError` where there is none of that name."""
    made = load_registered(name, TASKS, "task")(recipe)
    if not isinstance(made, Recipe):
        raise UserError(f"task={name}: it must return a slime_swe.recipes.base.Recipe, not {type(made).__name__}")
    return made
