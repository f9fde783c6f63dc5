"""docs/recipes.md says of the recipes what they are, and docs/plans.md what their plans are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.launch.plan.admission import sandboxes_at_once
from slime_swe.recipes.base import MASKED, Recipe
from slime_swe.recipes.registry import load_recipe
from tests.launch.plan import plans_page, recipes_page

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "recipes.md").read_text(encoding="utf-8")

ROWS: dict[str, Callable[[Recipe], str]] = {
    "model": lambda r: r.model.checkpoint.split("/")[1],
    "tasks": lambda r: ", ".join(r.data.train),
    "GPUs": lambda r: f"{r.cluster.train_gpus + r.cluster.rollout_gpus}",
    "tasks x episodes of a rollout": lambda r: f"{r.rollout.batch_size} x {r.rollout.samples_per_task}",
    "optimizer steps of a rollout": lambda r: f"{r.algorithm.steps_per_rollout}",
    "context": lambda r: f"{r.rollout.max_context}",
    "turns": lambda r: f"{r.rollout.max_turns}",
    "schedule": lambda r: r.rollout.schedule,
    "baseline": lambda r: "group mean" if r.algorithm.normalize_rewards else "none",
    "divided by deviation": lambda r: f"{r.algorithm.std_normalization}".lower(),
    "token losses averaged": lambda r: r.algorithm.reduction,
    "clip": lambda r: f"{r.algorithm.clip_low:g}, {r.algorithm.clip_high:g}",
    "KL penalty": lambda r: f"{r.algorithm.kl_coef:g}",
    "server against trainer": lambda r: f"{r.algorithm.mismatch} {r.algorithm.mismatch_high:g}",
    "truncated episodes": lambda r: "masked" if r.rollout.mask_truncated == [*MASKED] else "trained",
    "learning rate, weight decay": lambda r: f"{r.optimizer.lr:g}, {r.optimizer.weight_decay:g}",
    "temperature": lambda r: f"{r.rollout.temperature:g}",
    "sandboxes at once": lambda r: f"{sandboxes_at_once(r)}",
    "routing replay": lambda r: r.algorithm.routing_replay,
}


SECTIONS = [part.strip() for part in re.split(r"(?m)^(?=### )", PAGE.partition(recipes_page.HEADING)[2])[1:]]


def test_the_page_ends_with_a_section_for_each_recipe():
    assert [section.splitlines()[0] for section in SECTIONS] == [f"### {name}" for name in recipes_page.names()]


FIRST = "qwen3_coder_30b_a3b_async"  # whose plan takes the fewest simulations
REST = [pytest.param(name, marks=pytest.mark.extended("recipes")) for name in recipes_page.names() if name != FIRST]


@pytest.mark.parametrize("name", [FIRST, *REST])
def test_a_section_says_what_the_recipe_is_and_how_it_is_planned(name: str):
    assert recipes_page.section(name).strip() in SECTIONS, (
        "put what `python -m tests.launch.plan.recipes_page` prints at the end of docs/recipes.md"
    )


@pytest.mark.extended(
    "tests/launch/plan/test_recipes_page.py::test_a_section_says_what_the_recipe_is_and_how_it_is_planned"
)
@pytest.mark.timeout(600)  # all plans, with as many steps as a user's, on a busy machine
def test_the_committed_plans_are_those_of_the_recipes():
    assert (DOCS / "plans.md").read_text(encoding="utf-8") == plans_page.page(), (
        "recipes or formulae changed what is planned: look at the difference, then "
        "`python -m tests.launch.plan.plans_page > docs/plans.md`"
    )


def test_the_comparison_has_our_recipes_own_values():
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)]
    start = next(number for number, row in enumerate(table) if "DeepSWE [1]" in row)
    ours, rows = table[start][1:4], table[start + 2 : start + 2 + len(ROWS)]
    assert [row[0] for row in rows] == [*ROWS]
    for row in rows:
        assert row[1:4] == [ROWS[row[0]](load_recipe(name)) for name in ours], row[0]


@pytest.mark.parametrize("number", range(1, 7))
def test_every_other_column_names_its_source(number: int):
    assert f"[{number}]" in PAGE and re.search(
        rf"^{number}\. .*(at|in the parent of) [0-9a-f]{{7,9}}", PAGE, re.MULTILINE
    )
