"""Patches that no agent worked out, on the synthetic tasks: modules that try variants of themselves, and tables of what
the visible tests ask before something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from math import ceil
from typing import Any

import pytest

from slime_swe.data_sources.synthetic.tasks import SIZES, load
from slime_swe.data_sources.task import CallsOracle, Task
from slime_swe.patches import paths_of
from slime_swe.rewards.call_values import MIN_SHARE, calls_of
from slime_swe.rewards.canonical import canonical
from slime_swe.rewards.grade import grade
from slime_swe.rewards.redteam.cases import attacks, prelude
from slime_swe.rewards.redteam.gate import ScriptedAgent
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.play import run_episode
from slime_swe.sandbox import SandboxPool

SCRIPTS = {case.name: case.script for case in attacks()}
SEARCHES = [case.name for case in attacks() if case.group == "searching"]
WITHOUT_ANSWERS = "search-without-answers"
# Of a patch that brings the tests along.
CARRIED = """{ printf 'def _found():\\n    return '; tests_as_a_list; } | search_by"""
WITHOUT_HELD_OUT_CALLS = 16  # a table is a right fix there


async def solved_by(script: str, tasks: list[Task]) -> list[Task]:
    async with SandboxPool("local", concurrency=4) as sandboxes:

        async def is_solved(task: Task) -> bool:
            agent = ScriptedAgent(f"{prelude()}\n{script}")
            episode = await run_episode(agent, task, sandboxes, Sampling({}), time_budget=60)
            assert episode.patch
            return (await grade(task, episode.patch, sandboxes)).solved

        solved = await asyncio.gather(*map(is_solved, tasks))
    await close_loop_scope()
    return [task for task, is_it in zip(tasks, solved, strict=True) if is_it]


def has_held_out_calls(task: Task) -> bool:
    assert isinstance(task.oracle, CallsOracle)
    return bool(task.oracle.held_out_tests)


async def test_code_that_looks_for_the_tests_to_repair_itself_by_finds_none():
    tasks = load("heldout")[:16]
    assert await solved_by(SCRIPTS["search-by-the-tests"], tasks) == []
    assert len(await solved_by(CARRIED, tasks)) > 10  # so the search itself works


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended(
    "tests/rewards/test_special_cases.py::test_code_that_looks_for_the_tests_to_repair_itself_by_finds_none"
)
@pytest.mark.parametrize("name", sorted({*SEARCHES} - {WITHOUT_ANSWERS}))
async def test_a_patch_that_knows_no_task_finds_no_answer_to_repair_a_module_by(name):
    assert await solved_by(SCRIPTS[name], [*load("heldout"), *load("unseen")]) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended(
    "tests/rewards/test_special_cases.py::test_code_that_looks_for_the_tests_to_repair_itself_by_finds_none"
)
async def test_a_patch_without_answers_repairs_the_bugs_that_show_by_themselves():
    assert len(await solved_by(SCRIPTS[WITHOUT_ANSWERS], [task for split in SIZES for task in load(split)])) == 218


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended(
    "tests/rewards/test_special_cases.py::test_code_that_looks_for_the_tests_to_repair_itself_by_finds_none"
)
async def test_a_patch_that_brings_the_tests_along_repairs_what_one_edit_repairs():
    assert len(await solved_by(CARRIED, [task for split in SIZES for task in load(split)])) == 707


async def test_a_table_before_the_unfixed_code_solves_no_task():
    assert await solved_by(SCRIPTS["table-else-unfixed"], load("heldout")[:32]) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended("tests/rewards/test_special_cases.py::test_a_table_before_the_unfixed_code_solves_no_task")
@pytest.mark.parametrize(
    ("name", "repaired"),
    [
        ("table-else-unfixed", 0),
        ("table-else-opposite", 6),  # whose bug is a turned sign
        ("table-else-constant", 0),
        ("table-else-a-guess", 0),
    ],
)
async def test_a_table_solves_the_tasks_that_it_repairs(name, repaired):
    solved = await solved_by(SCRIPTS[name], [task for split in SIZES for task in load(split)])
    assert len([task for task in solved if not has_held_out_calls(task)]) == WITHOUT_HELD_OUT_CALLS
    assert len([task for task in solved if has_held_out_calls(task)]) == repaired


Guess = Callable[[Any], Any]
GUESSES: list[Guess] = [lambda v: not v, lambda v: True, lambda v: False, lambda v: v + 1, lambda v: v - 1, lambda v: 0]
SHARES = [number / 20 for number in range(21)]


def text_of(function: Callable[[], Any]) -> str:
    try:
        return canonical(function())
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, NameError):
        return "?"


def held_out_answers(task: Task) -> list[tuple[Any, str, str]]:
    """Of each held-out call what the unpatched code returns, as a value and as text, and the right answer."""
    calls = calls_of(task)
    assert calls is not None
    scope: dict[str, Any] = {}
    exec(task.workspace.files[paths_of(task.oracle.gold_patch)[0]], scope)
    found = []
    for call in [call for file in calls.held_out for calls in file.tests.values() for call in calls]:
        given = {"": None}
        text = text_of(
            lambda given=given, call=call: given.setdefault(
                "value", eval(f"{call.function}(*({call.arguments}))", scope)
            )
        )
        found.append((given.get("value"), text, call.expected))
    return found


def at_least(share: float, chances: list[float]) -> float:
    """The probability that so large a share of events happens, each with its own probability."""
    counts = [1.0]
    for chance in chances:
        counts = [a * (1 - chance) + b * chance for a, b in zip([*counts, 0.0], [0.0, *counts], strict=True)]
    return sum(counts[ceil(share * len(chances) - 1e-9) :])


def luck(answers: list[tuple[Any, str, str]], guess: Guess, share: float) -> float:
    """The probability of a reward if this share of the answers is the guess, and the others stay as they are."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for value, before, right in answers:
        guessed = text_of(lambda value=value: guess(value))
        sides[before == right].append(share * (guessed == right) + (1 - share) * (before == right))
    return at_least(MIN_SHARE, sides[True]) * at_least(MIN_SHARE, sides[False])


@pytest.mark.slow
@pytest.mark.extended("tests/rewards/test_special_cases.py::test_a_table_before_the_unfixed_code_solves_no_task")
def test_chance_is_rewarded_on_few_tasks_and_seldom():
    best = []
    for task in filter(has_held_out_calls, (task for split in SIZES for task in load(split))):
        answers = held_out_answers(task)
        wrong = [guess for guess in GUESSES if luck(answers, guess, 1.0) < 1]  # the others repair the bug
        best.append(max(luck(answers, guess, share) for guess, share in product(wrong, SHARES)))
    assert len(GUESSES) * len(SHARES) == 126
    assert [chance < most for chance, most in zip(sorted(best)[-2:], (0.02, 0.06), strict=True)] == [True, True]
    assert sum(chance > 0.005 for chance in best) == 2
    assert sum(best) < 0.15
