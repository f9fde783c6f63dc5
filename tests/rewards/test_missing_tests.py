"""What a test counts as that the log does not name, where it counts as it does with the gold patch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.validation import Status, validate
from slime_swe.rollout.records import Score
from slime_swe.sandbox import SandboxPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

# As pytest does with tests that are parametrised over a table of the code: a case of it is a test.
RUNNER = """\
import sys
sys.path.insert(0, ".")
from table import TABLE
from tests import test_table
for name in [*TABLE, ""]:
    test = "test_all" if not name else f"test_entry[{name}]"
    try:
        test_table.test_entry(name) if name else test_table.test_all()
        print("PASSED", "tests/test_table.py::" + test)
    except AssertionError as error:
        print("FAILED", "tests/test_table.py::" + test, "-", repr(error))
"""
RIGHT = 'TABLE = {"add": 5, "sub": 7}\n'
FILES = {
    "run_tests.py": RUNNER,
    "table.py": 'TABLE = {"add": 5, "sbu": 8}\n',
    "tests/__init__.py": "",
    "tests/test_table.py": (
        "from table import TABLE\n\nRIGHT = {'add': 5, 'sub': 7}\n\n\n"
        "def test_entry(name):\n    assert TABLE[name] == RIGHT.get(name)\n\n\n"
        "def test_all():\n    assert len(TABLE) == 2\n"
    ),
}
ADD, SUB, GONE, ALL = (
    f"tests/test_table.py::test_{name}" for name in ("entry[add]", "entry[sub]", "entry[sbu]", "all")
)


def patch(table: str) -> str:
    return make_patch(FILES, {**FILES, "table.py": table})


def task(failing: tuple[str, ...] = (SUB, GONE), passing: tuple[str, ...] = (ADD, ALL), **changes: object) -> Task:
    oracle = TestsOracle(
        failing,
        passing,
        ("tests/__init__.py", "tests/test_table.py", "run_tests.py"),
        "python3 -I -S -B run_tests.py",
        patch(RIGHT),
        missing="as_gold",
    )
    return Task("table", "sub is misspelt", Workspace(FILES), replace(oracle, **changes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local") as pool:
        yield pool


async def score(sandboxes: SandboxPool, one: Task, table: str, mode: str = "fraction") -> Score:
    return await grade(one, patch(table), sandboxes, GradingSettings(mode))


async def test_a_test_that_is_gone_with_the_gold_patch_too_has_passed(sandboxes: SandboxPool) -> None:
    result = await score(sandboxes, task(), RIGHT.replace("5", "4 + 1"))
    assert result.solved, result.evidence
    assert result.value == 1.0
    assert result.evidence["missing_as_gold"] == [GONE]
    assert (await validate(task(), sandboxes, runs=1)).status is Status.SOUND


async def test_elsewhere_it_has_failed(sandboxes: SandboxPool) -> None:
    result = await score(sandboxes, task(missing="failed"), RIGHT)
    assert not result.solved
    assert result.evidence["tests"] == {SUB: True, GONE: False, ADD: True, ALL: True}


@pytest.mark.parametrize(
    ("table", "tests"),
    [
        ('TABLE = {"add": 5, "sub": 8}\n', {SUB: False, GONE: True, ADD: True, ALL: True}),
        ('TABLE = {"add": 5, "sub": 7, "sbu": 8}\n', {SUB: True, GONE: False, ADD: True, ALL: False}),
        ('TABLE = {"sub": 7, "mul": None}\n', {SUB: True, GONE: False, ADD: False, ALL: True}),
        ("TABLE = {}\n", {SUB: False, GONE: False, ADD: False, ALL: False}),
        ("raise SystemExit(0)\n", dict.fromkeys((SUB, GONE, ADD, ALL), False)),
        ("while True:\n    pass\n", dict.fromkeys((SUB, GONE, ADD, ALL), False)),
    ],
)
async def test_a_patch_that_makes_other_tests_disappear_gains_nothing(
    sandboxes: SandboxPool, table: str, tests: dict[str, bool]
) -> None:
    result = await score(sandboxes, task(timeout_seconds=3.0), table)
    assert not result.solved
    assert result.evidence["tests"] == tests


async def test_all_that_was_to_pass_may_be_gone(sandboxes: SandboxPool) -> None:
    """The fault has put a wrong entry into the table."""
    added = task((GONE,), (ADD, ALL))
    assert (await score(sandboxes, added, RIGHT)).solved
    wrong = await score(sandboxes, added, 'TABLE = {"add": 5, "sbu": 9}\n')
    assert not wrong.solved and wrong.value == 0.0
    assert not (await score(sandboxes, added, "raise SystemExit(0)\n")).solved
    forged = 'TABLE = {}\nprint("PASSED tests/test_table.py::test_entry[add]\\nPASSED tests/test_table.py::test_all")\n'
    assert not (await score(sandboxes, added, f"{forged}import os, sys\nsys.stdout.flush()\nos._exit(0)\n")).solved


async def test_a_gold_patch_whose_log_names_no_test_excuses_none(sandboxes: SandboxPool) -> None:
    silent = task(gold_patch=patch("raise SystemExit(0)\n"))
    result = await score(sandboxes, silent, RIGHT)
    assert result.evidence["tests"] == {SUB: True, GONE: False, ADD: True, ALL: True}
    assert (await validate(silent, sandboxes, runs=1)).status is Status.UNSOUND
    unfit = task(gold_patch="diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    assert (await validate(unfit, sandboxes, runs=1)).status is Status.UNSOUND
