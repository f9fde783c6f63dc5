"""The nearest changes that make a recipe legal and let it fit, each checked by planning again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

from launch.plan.assumptions import Assumptions
from launch.plan.plan import burden, make_plan
from launch.plan.result import Plan
from recipes.base import Recipe
from recipes.rules.values import RULES, broken, lookup

DEPTH = 4  # changes at once
WIDTH = 24  # unfinished candidates that go on to the next change
SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Proposal:
    """overrides: words for the command line. plan: of the recipe with these."""

    overrides: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True)
class Candidate:
    edits: dict[str, Any]
    recipe: Recipe

    def distance(self, start: Recipe) -> float:
        """Sum over the changes: doublings of a size, tenths of a share, 1 for a switch; machines are dear."""
        return sum(_step(key, lookup(start, key), value) for key, value in self.edits.items())


Rated = tuple[float, float, Candidate]  # burden, distance


def propose(recipe: Recipe, assumed: Assumptions, limit: int = 3) -> tuple[Proposal, ...]:
    """Up to `limit` sets of overrides, fewest changes first, then the smallest ones; empty where the recipe fits
    already, or where nothing found makes it.

    All single changes are tried; of those that don't suffice, the most promising ones get a second, and so on.
    """
    if recipe.engine != "slime" or broken(recipe, RULES) or burden(recipe, assumed) == 0:
        return ()
    beam: list[Candidate] = [Candidate({}, recipe)]
    for _ in range(DEPTH):
        tried = _distinct(Candidate({**old.edits, key: value}, with_value(old.recipe, key, value))
                          for old in beam for key, value in _moves(old))  # fmt: skip
        rated = [(burden(candidate.recipe, assumed), candidate.distance(recipe), candidate) for candidate in tried]
        found = sorted((one for one in rated if one[0] == 0), key=lambda one: one[1])
        if found:
            return tuple(_proposal(candidate, assumed) for candidate in _one_a_field(found)[:limit])
        beam = [candidate for _, _, candidate in sorted(rated, key=lambda one: one[:2])[:WIDTH]]
    return ()


def _one_a_field(found: list[Rated]) -> list[Candidate]:
    """Of those that change the same fields, the nearest."""
    nearest: dict[frozenset[str], Candidate] = {}
    for _, _, candidate in found:
        nearest.setdefault(frozenset(candidate.edits), candidate)
    return list(nearest.values())


def with_value(recipe: Recipe, key: str, value: object) -> Recipe:
    """The recipe with another value at a dotted key of two parts."""
    section, _, name = key.partition(".")
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **{name: value})})


def _proposal(candidate: Candidate, assumed: Assumptions) -> Proposal:
    words = tuple(f"{key}={_word(candidate.edits[key])}" for key in MOVES if key in candidate.edits)
    plan = make_plan(candidate.recipe, assumed)
    assert plan.fits, (words, plan.problems)
    return Proposal(words, plan)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _distinct(candidates: Iterator[Candidate]) -> list[Candidate]:
    """The same changes in another order are the same candidate."""
    return list({frozenset(candidate.edits.items()): candidate for candidate in candidates}.values())


def _moves(candidate: Candidate) -> Iterator[tuple[str, Any]]:
    """Every value that a field not changed yet may take instead."""
    for key, values in MOVES.items():
        now = lookup(candidate.recipe, key)
        if key not in candidate.edits:
            yield from ((key, value) for value in dict.fromkeys(values(candidate.recipe)) if value != now)


def _step(key: str, old: Any, new: Any) -> float:
    if key == "cluster.nodes":
        return 3 * abs(log2(new / max(old, 1)))
    if key == "serving.mem_fraction":
        return float(abs(new - old) * 10)
    if isinstance(old, int) and not isinstance(old, bool):
        return abs(log2(new / max(old, 1)))
    return 1.0


def _expert_sizes(recipe: Recipe) -> tuple[int, ...]:
    return (*SIZES, 16, 32) if recipe.model.architecture.experts else (1,)


def _budgets_of_tokens(recipe: Recipe) -> tuple[int, ...]:
    """Half, double, and what just holds an episode."""
    tokens, context = recipe.parallel.max_tokens_per_gpu, recipe.rollout.max_context
    return (max(tokens // 2, 1), 2 * tokens, *(ceil(context / cp) for cp in SIZES))


MOVES: dict[str, Callable[[Recipe], tuple[Any, ...]]] = {
    "parallel.tp": lambda recipe: SIZES,
    "parallel.pp": lambda recipe: SIZES,
    "parallel.cp": lambda recipe: SIZES,
    "parallel.ep": _expert_sizes,
    "parallel.etp": lambda recipe: (1, 2, 4) if recipe.model.architecture.experts else (1,),
    "parallel.recompute": lambda recipe: ("selective", "full"),
    "parallel.max_tokens_per_gpu": _budgets_of_tokens,
    "optimizer.cpu_offload": lambda recipe: (True, False),
    "serving.mem_fraction": lambda recipe: (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85),
    "serving.gpus_per_engine": lambda recipe: SIZES,
    "serving.ep": _expert_sizes,
    "cluster.nodes": lambda recipe: (2 * recipe.cluster.nodes, 4 * recipe.cluster.nodes),
}
