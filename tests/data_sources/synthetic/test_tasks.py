from __future__ import annotations

import ast
import builtins
import hashlib
import json
import keyword
import random
import re
import sys
from typing import Any

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.synthetic.bugs import TRAINED_CLASSES, UNSEEN_CLASSES
from slime_swe.data_sources.synthetic.functions import run_call
from slime_swe.data_sources.synthetic.tasks import PIECES, SIZES, draw_repository, failing_tests, is_held_out, load
from slime_swe.data_sources.task import Task
from slime_swe.patches import make_patch, paths_of
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.sandbox.pool import SandboxPool

SPLITS = list(SIZES)


def sources(task: Task) -> dict[str, str]:
    return {path: text for path, text in task.workspace.files.items() if path not in task.oracle.protected}


def test_there_are_enough_tasks() -> None:
    assert len(load("train")) >= 300
    assert len(load("heldout")) >= 100
    assert len(load("unseen")) >= 50


def test_loading_twice_gives_the_same_tasks() -> None:
    assert load("heldout") == load("heldout")
    assert load_tasks("synthetic:unseen") == load("unseen")


def test_the_tasks_are_those_that_results_were_published_for() -> None:
    """But for the held-out calls, which no agent sees."""
    tasks = [task.to_dict() for split in SPLITS for task in load(split)]
    held_out = "".join(task["oracle"].pop("held_out_tests") for task in tasks)
    shown = "".join(json.dumps(task, sort_keys=True) for task in tasks)
    assert [hashlib.sha256(text.encode()).hexdigest() for text in (shown, held_out)] == [
        "01a67aa3f42de4e114c1f8dac4abb14d2b7fbf9ea2fc857ac7f43785bf829dac",
        "7b502e027192d198ab8aa80c453e6b61608263d1c470ae0de3776b9087ad7870",
    ]


def held_out_results(task: Task) -> list[tuple[str, bool]]:
    """Of each held-out call the answer, and whether the task's own code, which has the bug, gives it."""
    scope: dict[str, Any] = {}
    (module,) = paths_of(task.oracle.gold_patch)
    exec(task.workspace.files[module], scope)
    calls = re.findall(r"assert (.*) == (.*)", task.oracle.held_out_tests)  # type: ignore[attr-defined]
    return [(answer, run_call(eval(f"lambda: {call}", scope), ()) == answer) for call, answer in calls]


def test_the_bug_shows_on_held_out_calls_in_no_order() -> None:
    found = [held_out_results(task) for split in SPLITS for task in load(split)]
    assert found.count([]) == 16  # the bug shows on one input alone, and the tests show that
    results = [[right for _, right in calls] for calls in found if calls]
    failing = sorted(right.count(False) for right in results)
    assert failing[0] >= 2 and failing[20] >= 14
    in_first_half = [right[: len(right) // 2].count(False) / right.count(False) for right in results]
    assert 0.45 < sum(in_first_half) / len(results) < 0.55


def test_no_constant_is_right_on_most_held_out_calls() -> None:
    for task in (task for split in SPLITS for task in load(split)):
        sides = [[answer for answer, right in held_out_results(task) if right is side] for side in (False, True)]
        for constant in {*sides[0], *sides[1]}:
            shares = [side.count(constant) / len(side) for side in sides if side]
            assert min(shares) < 7 / 8, (task.id, constant)


def test_an_unknown_split_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="train, heldout, unseen"):
        load("dev")


def test_no_function_and_bug_pair_is_on_two_sides() -> None:
    pairs = {split: {task.metadata["pair"] for task in load(split)} for split in SPLITS}
    assert not pairs["train"] & pairs["heldout"]
    assert not pairs["train"] & pairs["unseen"]
    assert not pairs["heldout"] & pairs["unseen"]
    assert len(pairs["heldout"]) >= 80


def test_bug_classes_are_those_of_the_split() -> None:
    assert {task.metadata["bug_class"] for task in load("train")} == set(TRAINED_CLASSES)
    assert {task.metadata["bug_class"] for task in load("heldout")} == set(TRAINED_CLASSES)
    assert {task.metadata["bug_class"] for task in load("unseen")} == set(UNSEEN_CLASSES)


@pytest.mark.parametrize("split", SPLITS)
def test_names_are_those_of_the_split(split: str) -> None:
    pieces = "|".join(PIECES)
    for task in load(split):
        for text in sources(task).values():
            for first, second in re.findall(rf"\b({pieces})_({pieces})\b", text):
                assert is_held_out(first, second) is (split != "train")


@pytest.mark.parametrize("split", SPLITS)
def test_nothing_that_the_agent_reads_names_the_fix(split: str) -> None:
    for task in load(split):
        added = [line[1:].strip() for line in task.oracle.gold_patch.splitlines() if re.match(r"\+[^+]", line)]
        assert added
        assert not any(line in task.statement for line in added)
        assert set(task.oracle.fail_to_pass).isdisjoint(task.oracle.pass_to_pass)
        assert str(task.metadata["bug_class"]) not in task.statement


@pytest.mark.parametrize("split", SPLITS)
def test_repositories_are_python_with_two_modules_and_their_tests(split: str) -> None:
    layouts = set()
    for task in load(split):
        files = sources(task)
        assert len(files) == 2
        assert len(task.oracle.protected) == 3
        for path, text in task.workspace.files.items():
            ast.parse(text)
            layouts.add(path.count("/") if path in files else 0)
    assert layouts == {0, 1, 2}


@pytest.mark.parametrize(
    "step",
    [pytest.param(1, marks=pytest.mark.extended("tables on all synthetic tasks")), 16],
    ids=["every", "every sixteenth"],
)
@pytest.mark.parametrize("split", SPLITS)
async def test_a_task_proves_itself(split: str, step: int) -> None:
    """The gold patch solves it and the empty patch does not; what fails without it is FAIL_TO_PASS, to the test."""
    async with SandboxPool("local") as sandboxes:
        for task in load(split)[::step]:
            gold = await grade(task, task.oracle.gold_patch, sandboxes)
            assert (gold.solved, gold.value) == (True, 1.0), (task.id, gold.evidence)
            assert not (await grade(task, "", sandboxes)).solved


async def test_the_tests_that_fail_at_first_are_fail_to_pass() -> None:
    harmless = make_patch({}, {"notes.txt": "x\n"})
    async with SandboxPool("local") as sandboxes:
        for task in load("heldout")[::8]:
            score = await grade(task, harmless, sandboxes, GradingSettings("fraction"))
            failed = {test for test, passed in score.evidence["tests"].items() if not passed}
            assert failed == set(task.oracle.fail_to_pass), task.id


def test_a_wrong_fix_of_the_right_line_is_caught() -> None:
    """Tests are chosen to tell *every* mutant of a function from the right one, not only the bug of the task."""
    for index in range(40):
        repository = draw_repository(random.Random(index), "train")
        function = repository.modules[repository.bug.module].functions[repository.bug.function]
        chosen = {call for calls in function.tests.values() for call in calls}
        for mutant in function.template.mutants:
            assert chosen & {function.template.calls[number] for number in mutant.killed_by}, mutant.key
        assert failing_tests(repository)[0]


def test_no_name_hides_or_is_hidden_by_a_module_of_the_standard_library() -> None:
    taken = {*sys.stdlib_module_names, *keyword.kwlist, *dir(builtins)}
    assert not taken & set(PIECES)
