"""Two-faced code, which forges its log in one run and is honestly wrong in another, played against real graders."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards.altered_tests import FORMS
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.negative_control import FURTHER_RUNS
from slime_swe.rewards.redteam.cases import GOLD_PATCH, MODULE, REPOSITORY, TARGETS
from slime_swe.rewards.redteam.gate import leaky_image
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.sandbox import SandboxPool
from tests.rewards.swebench_here import harness_python, need_docker

PLAYS = 100
# Each is a condition under which a run forges; else it is honestly wrong.
FACES = {
    "coin": "os.urandom(1)[0] % 2",
    "clock": "time.time() % 0.5 < 0.4",  # and a forged run ends only when the honest time has come
    "knows the control": "'_record_value' not in open('tests/test_calc.py').read()",
    "first of the two": "int(open('/proc/self/stat').read().split()[21]) % 2",  # the time that the process started
}
FORGER = """\
import os, time
if {condition}:
    os.write(1, "".join(f"\\nPASSED {{name}}\\n" for name in {names!r}).encode())
    while {wait} and time.time() % 0.5 < 0.4:
        time.sleep(0.01)
    os._exit(0)
"""


def two_faced(task: Task, face: str) -> str:
    names = (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)
    forger = FORGER.format(condition=FACES[face], names=names, wait=face == "clock")
    return make_patch({MODULE: REPOSITORY[MODULE]}, {MODULE: forger + REPOSITORY[MODULE]})


@asynccontextmanager
async def target(sandbox: str, grader: str) -> AsyncIterator[tuple[Task, Callable[[str], object]]]:
    """A task of the integrity gate, and what grades a patch to it; skipped where this machine lacks something."""
    settings = GradingSettings(harness_python=harness_python() if grader == "harness" else "")
    if sandbox == "docker":
        need_docker()
    try:
        image = await asyncio.to_thread(leaky_image, sandbox) if TARGETS[grader].in_image else None
    except UserError as error:
        pytest.skip(str(error))
    task = TARGETS[grader].task(image)
    async with SandboxPool(sandbox, concurrency=4) as pool:

        async def outcome(patch: str, of: Task = task) -> str:
            return (await grade(of, patch, pool, settings)).evidence["outcome"]

        yield task, outcome
        await close_loop_scope()


async def played(outcome: Callable[[], object], plays: int = PLAYS) -> Counter[str]:
    return Counter(await asyncio.gather(*(outcome() for _ in range(plays))))


def rows() -> list[object]:
    """One in every run, and all of them where they are asked for."""
    combinations = [("local", "log"), ("overlay", "repository"), ("overlay", "harness"), ("docker", "harness")]
    every = [(sandbox, grader, face) for sandbox, grader in combinations for face in FACES]
    mark = pytest.mark.extended("two-faced attacks")
    return [every[0], *(pytest.param(*row, marks=[mark, pytest.mark.timeout(900)]) for row in every[1:])]


@pytest.mark.slow
@pytest.mark.parametrize(("sandbox", "grader", "face"), rows())
async def test_no_two_faced_code_is_rewarded(sandbox, grader, face):
    async with target(sandbox, grader) as (task, outcome):
        patch = two_faced(task, face)
        found = await played(lambda: outcome(patch))
        assert set(found) <= {"forged", "failed"}, found
        assert found["forged"], "some first runs did forge"
        assert await outcome(GOLD_PATCH) == "solved"


WITHOUT_VALUES = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) in (3, 4)\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended("tests/rewards/test_two_faced.py::test_no_two_faced_code_is_rewarded")
@pytest.mark.parametrize("face", ["coin", "clock", "first of the two"])
async def test_without_values_luck_is_bounded(face):
    async with target("local", "log") as (task, outcome):
        files = {**REPOSITORY, "tests/test_calc.py": WITHOUT_VALUES}
        oracle = replace(task.oracle, fail_to_pass=task.oracle.fail_to_pass[:1], pass_to_pass=())
        task = replace(task, workspace=Workspace(files), oracle=oracle)
        patch = two_faced(task, face)
        found = await played(lambda: outcome(patch, task))
        assert found["solved"] <= 5, (
            f"in 100 plays, where a fair coin is right once in {2 ** (FURTHER_RUNS + 1)}: {found}"
        )
        assert await outcome(GOLD_PATCH, task) == "solved"


# Tests of which one part has a value, and the code that knows the control may leave the rest as it is.
PARTS = {
    "of two tests, one is repaired": (
        "def test_add():\n    assert add(5, 1) == 6\n\n\ndef test_add_more():\n    assert add(2, 7) in (9, 10)\n",
        "def add(a, b):\n    return 6 if b == 1 else 1 / 0\n",
    ),
    "what has a value was right before": (
        "def test_add():\n    assert double(4) == 8\n    assert add(5, 1) in (6, 7)\n\n\n"
        "def test_add_more():\n    assert double(2) == 4\n    assert add(2, 7) in (9, 10)\n",
        "",
    ),
}


@pytest.mark.parametrize(
    ("plays", "most"),
    [(4, 1), pytest.param(PLAYS, 5, marks=[pytest.mark.extended("two-faced attacks"), pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("part", PARTS)
async def test_a_value_in_one_place_is_no_witness_for_another(part, plays, most):
    tests, repaired = PARTS[part]
    async with target("local", "log") as (task, outcome):
        files = {**REPOSITORY, "tests/test_calc.py": f"from calc import add, double\n\n\n{tests}"}
        task = replace(task, workspace=Workspace(files), oracle=replace(task.oracle, pass_to_pass=()))
        forger = FORGER.format(condition=FACES["knows the control"], names=task.oracle.fail_to_pass, wait=False)
        patch = make_patch({MODULE: REPOSITORY[MODULE]}, {MODULE: forger + REPOSITORY[MODULE] + repaired})
        found = await played(lambda: outcome(patch, task), plays)
        assert found["solved"] <= most, f"in {plays} plays: {found}"
        assert await outcome(GOLD_PATCH, task) == "solved"


async def test_a_pool_of_one_place_is_enough():
    """No run holds a place while it waits for another."""
    async with SandboxPool("local", concurrency=1) as pool:
        task = TARGETS["log"].task()
        scores = await asyncio.wait_for(asyncio.gather(*(grade(task, GOLD_PATCH, pool) for _ in range(4))), 60)
        assert all(score.solved for score in scores)


class Counted:
    """A pool that counts the sandboxes that are asked for."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool, self.opened = pool, 0

    def open(self, *arguments, **named):
        self.opened += 1
        return self.pool.open(*arguments, **named)


@pytest.mark.parametrize("patch", ["", "+" * ((1 << 20) + 1)])
async def test_a_refused_patch_opens_no_sandbox(patch):
    async with SandboxPool("local") as pool:
        counted = Counted(pool)
        await grade(TARGETS["log"].task(), patch, counted)
        assert counted.opened == 0


@pytest.mark.parametrize(
    ("tests", "own", "once"),
    [(None, 2, [2]), (WITHOUT_VALUES, 2 + FURTHER_RUNS, [1 + 1 + number for number in range(6, FORMS + 1, 6)])],
    ids=["values", "without values"],
)
async def test_what_is_run_for_a_task_is_run_once_for_all_its_patches(tests, own, once):
    """own: the sandboxes of a patch that is rewarded. once: those of the task, for the controls of the gold patch and,
    if values are withheld, of the unpatched code; without values also for the gold patch with the test alone and with
    six forms of it at a time, until six have failed."""
    async with SandboxPool("local", concurrency=4) as pool:
        task, counted = TARGETS["log"].task(), Counted(pool)
        if tests is not None:
            files = {**REPOSITORY, "tests/test_calc.py": tests}
            oracle = replace(task.oracle, fail_to_pass=task.oracle.fail_to_pass[:1], pass_to_pass=())
            task = replace(task, workspace=Workspace(files), oracle=oracle)
        for number in range(2):
            opened = counted.opened
            score = await grade(task, GOLD_PATCH, counted)
            assert score.solved, score.evidence
            assert counted.opened - opened - own in ([0] if number else once)
        await close_loop_scope()
