"""What validation says of tasks: real tests in a real sandbox, and the decision on made-up runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Task, Workspace
from slime_swe.rewards.grade import Trial
from slime_swe.rewards.validation import Finding, Status, judge_runs, summary, validate, without_flaky
from slime_swe.sandbox import SandboxPool
from tests.data_sources.tasks import GOLD, make_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADD, NAME = "test_calc.py::test_add", "test_calc.py::test_name"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local") as pool:
        yield pool


def with_files(**texts: str) -> Task:
    task = make_task()
    return replace(
        task, workspace=Workspace({**task.workspace.files, **{f"{n}.py": text for n, text in texts.items()}})
    )


async def test_a_sound_task_proves_itself(sandboxes: SandboxPool) -> None:
    finding = await validate(make_task(), sandboxes)
    assert (finding.status, finding.detail, finding.flaky) == (Status.SOUND, "", ())
    assert finding.seconds > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gold_patch": ""}, "no gold patch"),
        ({"gold_patch": GOLD.replace("a - b", "a / b")}, "can't be applied: calc.py does not have the lines"),
        (
            {"gold_patch": GOLD.replace("a + b", "a * b")},
            "1 of 2 tests fail with the gold patch: test_calc.py::test_add",
        ),
        ({"fail_to_pass": (ADD, NAME), "pass_to_pass": ()}, f"are FAIL_TO_PASS but pass without a patch: {NAME}"),
        ({"fail_to_pass": (NAME,), "pass_to_pass": (ADD,)}, f"are PASS_TO_PASS but fail without a patch: {ADD}"),
        ({"command": "true"}, "the output of 'true' names none of the tests; 2 of 2 tests fail with the gold patch"),
        ({"command": "sleep 9", "timeout_seconds": 0.2}, "with the gold patch the time limit is reached"),
    ],
)
async def test_a_task_that_proves_nothing_is_unsound(
    sandboxes: SandboxPool, changes: dict[str, object], message: str
) -> None:
    finding = await validate(make_task(**changes), sandboxes, runs=1)
    assert finding.status is Status.UNSOUND
    assert message in finding.detail


async def test_a_missing_gold_patch_is_found_before_any_run() -> None:
    class NoRoom:
        def open(self, *arguments: object, **named: object) -> None:
            raise AssertionError("a sandbox was opened")

    finding = await validate(make_task(gold_patch=""), NoRoom())
    assert (finding.status, finding.detail) == (Status.UNSOUND, "it has no gold patch")


async def test_a_test_in_both_lists_counts_once(sandboxes: SandboxPool) -> None:
    finding = await validate(make_task(pass_to_pass=(ADD, NAME), command="true"), sandboxes, runs=1)
    assert "2 of 2 tests fail with the gold patch" in finding.detail


async def test_a_task_whose_log_has_no_witness_is_counted(sandboxes: SandboxPool) -> None:
    """Its tests are made by a program, and no file of theirs is protected."""
    made = "import sys\nfrom calc import add\nprint('PASSED' if add(1, 2) == 3 else 'FAILED', 'made.txt::add')\n"
    task = with_files(made=made)
    oracle = replace(
        task.oracle, fail_to_pass=("made.txt::add",), pass_to_pass=(), protected=(), command="python3 made.py"
    )
    finding = await validate(replace(task, oracle=oracle), sandboxes, runs=1)
    assert (finding.status, finding.unwitnessed) == (Status.UNSOUND, True)
    assert "reward.negative_control=false" in finding.detail
    assert summary([finding, Finding("a", Status.SOUND)])["unwitnessed"] == 1


async def test_a_test_that_fails_now_and_then_is_flaky(sandboxes: SandboxPool) -> None:
    """Its outcome hangs on the clock."""
    tests = make_task().workspace.files["test_calc.py"]
    task = with_files(
        test_calc=f"{tests}\n\ndef test_luck():\n    import time\n    assert time.time_ns() // 1000 % 2\n"
    )
    task = replace(task, oracle=replace(task.oracle, pass_to_pass=(NAME, "test_calc.py::test_luck")))
    finding = await validate(task, sandboxes, runs=12)
    assert finding.status is Status.FLAKY
    assert finding.flaky == ("test_calc.py::test_luck",)
    assert finding.detail == "outcomes change: test_calc.py::test_luck"


async def test_a_failing_sandbox_says_nothing_of_the_task(sandboxes: SandboxPool) -> None:
    task = make_task()
    broken = replace(
        task, workspace=Workspace({**task.workspace.files, "x" * 300: ""})
    )  # no file system takes the name
    finding = await validate(broken, sandboxes, runs=1)
    assert finding.status is Status.BROKEN
    assert "sandbox failed" in finding.detail


def runs(*outcomes: tuple[bool, bool]) -> list[Trial]:
    return [Trial({ADD: add, NAME: name}, add and name, "") for add, name in outcomes]


SOLVED, UNSOLVED = (True, True), (False, True)


@pytest.mark.parametrize(
    ("gold", "empty", "status", "flaky"),
    [
        ([SOLVED, SOLVED], [UNSOLVED, UNSOLVED], Status.SOUND, ()),
        ([SOLVED, (True, False)], [UNSOLVED, UNSOLVED], Status.FLAKY, (NAME,)),
        ([SOLVED, SOLVED], [UNSOLVED, SOLVED], Status.FLAKY, (ADD,)),
        ([(True, False), SOLVED], [UNSOLVED, UNSOLVED], Status.FLAKY, (NAME,)),
        ([(False, True), (False, False)], [UNSOLVED, UNSOLVED], Status.UNSOUND, (NAME,)),
        ([SOLVED, SOLVED], [SOLVED, SOLVED], Status.UNSOUND, ()),
    ],
)
async def test_the_decision_is_on_the_steady_tests(gold, empty, status, flaky) -> None:
    finding = judge_runs(make_task(), runs(*gold), runs(*empty))
    assert (finding.status, finding.flaky) == (status, flaky)


async def test_an_oracle_that_wants_more_than_its_tests_is_heard() -> None:
    gold = [replace(trial, solved=False) for trial in runs(SOLVED)]
    assert judge_runs(make_task(), gold, runs(UNSOLVED)).status is Status.UNSOUND
    rejected = [replace(trial, rejected="forged", details={"rejection_reason": "they pass mutated"}) for trial in gold]
    finding = judge_runs(make_task(), rejected, runs(UNSOLVED))
    assert finding.status is Status.UNSOUND and finding.detail.endswith("which is not accepted: they pass mutated")


async def test_a_task_may_do_without_a_flaky_test_but_not_without_its_last() -> None:
    kept = without_flaky(make_task(), [NAME])
    assert kept is not None
    assert (kept.oracle.fail_to_pass, kept.oracle.pass_to_pass) == ((ADD,), ())
    assert without_flaky(make_task(), [ADD]) is None
    assert Finding("a", Status.SOUND).detail == ""
