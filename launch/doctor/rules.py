"""What needs no machine: the recipe's own rules, and its plan."""

from __future__ import annotations

from collections.abc import Iterator

from launch.doctor.finding import Finding, failure, ok, skipped
from launch.doctor.machine import Machine
from recipes.base import Recipe
from recipes.checks import violations


def check_rules(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Every rule that the recipe breaks."""
    broken = violations(recipe)
    for violation in broken:
        yield failure("recipe", violation.message, violation.fix)
    if not broken:
        yield ok("recipe", f"{recipe.name}: legal for engine={recipe.engine}")


def check_plan(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Whether it has the memory that it needs."""
    from launch.plan.plan import make_plan

    if violations(recipe):
        yield skipped("plan", "the recipe must be legal first")
        return
    plan = make_plan(recipe)
    for problem in plan.problems:
        yield failure("plan", problem.message, problem.fix)
    if plan.fits:
        yield ok("plan", f"fits: {'; '.join(str(budget) for budget in plan.budgets)}")
