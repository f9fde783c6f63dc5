from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import OVERSIZED, make_patch
from slime_swe.rewards.grade import MODES, GraderError, GradingSettings, grade, try_patch
from slime_swe.rewards.guard import Guard, graded_files
from slime_swe.rollout.records import Score
from slime_swe.sandbox import SandboxPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNNER = """\
import sys
sys.path.insert(0, ".")
from tests import test_calc
failed = False
for name, test in vars(test_calc).items():
    if name.startswith("test_"):
        try:
            test()
            print("PASSED", "tests/test_calc.py::" + name)
        except Exception as error:
            failed = True
            print("FAILED", "tests/test_calc.py::" + name, "-", repr(error))
sys.exit(failed)
"""
FILES = {
    "runtests.py": RUNNER,
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef one():\n    return 1\n",
    "tests/__init__.py": "",
    "tests/test_calc.py": (
        "from calc import add, one\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\n"
        "def test_zero():\n    assert add(1, 0) == 1\n\n\ndef test_one():\n    assert one() == 1\n"
    ),
}
F2P, P2P = "tests/test_calc.py::test_add", ("tests/test_calc.py::test_zero", "tests/test_calc.py::test_one")


def patch(**changes: str | None) -> str:
    """A patch that gives these files these texts; `calc=` means calc.py, and None deletes."""
    named = {path if "." in path else f"{path}.py": text for path, text in changes.items()}
    return make_patch(FILES, {path: text for path, text in {**FILES, **named}.items() if text is not None})


FIXED = FILES["calc.py"].replace("a - b", "a + b")
BROKEN = FIXED.replace("return 1", "return 2")
GOLD = patch(calc=FIXED)
TASK = Task(
    id="calc",
    statement="add subtracts",
    workspace=Workspace(FILES),
    oracle=TestsOracle(
        (F2P,), P2P, ("tests/__init__.py", "tests/test_calc.py", "runtests.py"), "python3 -I -S -B runtests.py", GOLD
    ),
    source="test",
    split="test",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local") as pool:
        yield pool


async def score(sandboxes: SandboxPool, text: str, mode: str = "plus_minus") -> Score:
    return await grade(TASK, text, sandboxes, GradingSettings(mode))


async def test_the_gold_patch_solves(sandboxes: SandboxPool) -> None:
    result = await score(sandboxes, GOLD)
    assert result.solved
    assert result.evidence["outcome"] == "solved"
    assert result.evidence["tests"] == dict.fromkeys((F2P, *P2P), True)
    assert result.evidence["patch_bytes"] == len(GOLD)
    assert "PASSED" in result.evidence["log"]
    assert result.components == {"fail_to_pass": 1.0, "pass_to_pass": 1.0}


@pytest.mark.parametrize(
    ("text", "values"),  # in the order plus_minus, binary, fraction
    [
        (GOLD, (1.0, 1.0, 1.0)),
        ("", (-1.0, 0.0, 0.0)),
        (patch(calc=FILES["calc.py"] + "\n# nothing\n"), (-1.0, 0.0, 0.0)),
        (patch(calc=BROKEN), (-1.0, 0.0, 2 / 3)),
        (patch(calc="syntax error"), (-1.0, 0.0, 0.0)),
        (patch(calc=None), (-1.0, 0.0, 0.0)),
    ],
)
async def test_values_by_mode(sandboxes: SandboxPool, text: str, values: tuple[float, ...]) -> None:
    assert [(await score(sandboxes, text, mode)).value for mode in MODES] == list(values)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", "empty_patch"),
        (" \n", "empty_patch"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n", "unappliable_patch"),
        ("@@ -1 +1 @@\n-a\n+b\n", "unappliable_patch"),
        ("nonsense", "failed"),
        ("+" * ((1 << 20) + 1), "oversized_patch"),
        (OVERSIZED, "oversized_patch"),
    ],
)
async def test_a_bad_patch_is_a_stated_outcome(sandboxes: SandboxPool, text: str, outcome: str) -> None:
    result = await score(sandboxes, text)
    assert not result.solved
    assert result.evidence["outcome"] == outcome


CHEATS = {
    "edits the test": {"tests/test_calc.py": "def test_add(): pass\ndef test_zero(): pass\ndef test_one(): pass\n"},
    "edits the runner": {"runtests.py": f"for t in {(F2P, *P2P)!r}: print('PASSED', t)\n"},
    "deletes the test": {"tests/test_calc.py": None},
    "shadows the test with a package": {"tests/test_calc/__init__.py": "def test_add(): pass\n"},
    "adds a module beside the tests": {"tests/extra.py": "x = 1\n"},
    "conftest": {"conftest.py": "x = 1\n", "sub/conftest.py": "x = 1\n"},
    "sitecustomize": {"sitecustomize.py": "x = 1\n"},
    "settings of pytest": {"pyproject.toml": "", "pytest.toml": "x", "sub/.pytest.toml": "x"},
    "standard library below src": {"src/traceback.py": "x = 1\n", "src/queue/__init__.py": "x = 1\n"},
    "shadows the test below src": {"src/tests/test_calc.py": "def test_add(): pass\n"},
    "standard library": {"traceback.py": "x = 1\n", "sys/__init__.py": "x = 1\n"},
    "shadows the runner": {"runtests/__init__.py": "x = 1\n"},
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_patch_to_what_decides_counts_for_nothing(sandboxes: SandboxPool, name: str) -> None:
    text = patch(**CHEATS[name])
    files, ignored = await graded_files(TASK, text)
    assert ignored == sorted(CHEATS[name])
    assert (
        files == {path: content for path, content in FILES.items()}
        or {path: content if isinstance(content, str) else content.decode() for path, content in files.items()} == FILES
    )
    result = await score(sandboxes, text)
    assert not result.solved
    assert result.evidence["ignored_paths"] == sorted(CHEATS[name])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"setup.cfg": "x"}, {"setup.cfg/x": "1", "setup.cfg/y/z": "2"}),
        ({"conf/conftest.py": "x"}, {"conf": "1"}),
        ({"conf/conftest.py": "x"}, {"conf/conftest.py/x": "1"}),
    ],
)
async def test_what_is_in_the_way_of_a_restored_file_is_dropped(
    sandboxes: SandboxPool, before: dict[str, str], after: dict[str, str]
) -> None:
    task = replace(TASK, workspace=Workspace({**FILES, **before}))
    text = make_patch(task.workspace.files, {**FILES, "calc.py": FIXED, **after})
    result = await grade(task, text, sandboxes)
    assert result.solved
    assert result.evidence["ignored_paths"] == sorted({**before, **after})


async def test_shadowing_is_judged_outside_of_packages() -> None:
    known = {**FILES, "src/pkg/__init__.py": "", "src/pkg/data/x.txt": "", "lib/tool.py": ""}
    new = {
        "src/pkg/types.py": "1",
        "src/pkg/data/queue.py": "1",
        "lib/json.py": "1",
        "src/queue.py": "1",
        "src/__init__.py": "",
    }
    task = replace(TASK, workspace=Workspace(known))
    assert (await graded_files(task, make_patch(known, {**known, **new})))[1] == ["lib/json.py", "src/queue.py"]


async def test_a_new_file_beside_the_tests_counts_for_nothing() -> None:
    guarded = Guard({"tests/test_a.py", "pkg/a.py"}, {"tests/test_a.py"})
    assert [guarded(path) for path in ("tests/helper.py", "tests/sub/b.py", "pkg/b.py")] == [True, True, False]


async def test_a_fix_with_a_patch_to_the_tests_still_solves(sandboxes: SandboxPool) -> None:
    result = await score(sandboxes, patch(calc=FIXED, **{"tests/test_calc.py": "def test_add(): assert False\n"}))
    assert result.solved


async def test_new_modules_of_the_fix_are_kept(sandboxes: SandboxPool) -> None:
    result = await score(sandboxes, patch(calc="from core.ops import add, one\n", **{"core/ops.py": FIXED}))
    assert result.solved
    assert result.evidence["ignored_paths"] == []


async def test_a_binary_file_beside_the_fix_does_not_spoil_it(sandboxes: SandboxPool) -> None:
    text = make_patch(FILES, {**FILES, "calc.py": FIXED, "core.dump": b"\x00\xff"})
    result = await score(sandboxes, text)
    assert result.solved
    assert result.evidence["binary_paths"] == ["core.dump"]


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass\n",
        "import os, time\nif os.fork() == 0: time.sleep(99)\ntime.sleep(99)\n",
        f"{FIXED}import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n",
    ],
)
async def test_code_that_hangs_is_the_policy_s_failure(sandboxes: SandboxPool, body: str) -> None:
    task = replace(TASK, oracle=replace(TASK.oracle, timeout_seconds=0.5))
    result = await grade(task, patch(calc=body), sandboxes)
    assert (result.evidence["outcome"], result.value, result.solved) == ("timeout", -1.0, False)


async def test_a_long_log_loses_no_test(sandboxes: SandboxPool) -> None:
    noisy = FIXED + "print('x' * 100_000)\n"
    assert (await score(sandboxes, patch(calc=noisy))).solved


async def test_a_failing_sandbox_is_a_grader_error() -> None:
    pool = SandboxPool("local")
    broken = replace(TASK, workspace=Workspace({**FILES, "x" * 300: ""}))  # no file system takes the name
    async with pool:
        with pytest.raises(GraderError, match="sandbox failed"):
            await try_patch(broken, "", pool)


async def test_an_unknown_mode_says_which_there_are() -> None:
    with pytest.raises(UserError, match=r"reward.mode: unknown name 'shaped'.*binary, fraction, plus_minus"):
        GradingSettings("shaped")


FAILURE = 'print("FAILED", "tests/test_calc.py::" + name, "-", repr(error))'
RUNNERS = {
    "reports failures": RUNNER,
    "stops at the first failure": RUNNER.replace(FAILURE, FAILURE + "; break"),
    "reports passes alone": RUNNER.replace(FAILURE, "pass"),
    "dies of the first failure": RUNNER.replace("except Exception as error", "except ZeroDivisionError as error"),
    "hangs once a test has failed": RUNNER.replace(FAILURE, FAILURE + "; hang = __import__('time').sleep").replace(
        "sys.exit(failed)", "sys.stdout.flush()\nfailed and hang(9)"
    ),
    "takes a failure of one test for a pass": RUNNER.replace(
        "failed = True", "print('PASSED' if name == 'test_one' else 'FAILED', 'tests/test_calc.py::' + name); continue"
    ),
}
LOST = """
import os
tests = open("tests/test_calc.py").read()
if not all(wanted in tests for wanted in ("add(1, 2) == 3\\n", "add(1, 0) == 1\\n", "one() == 1\\n")):
    os._exit(0)
for name in ("test_add", "test_zero", "test_one"):
    print("PASSED", "tests/test_calc.py::" + name, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", RUNNERS)
async def test_honest_work_is_believed_whatever_the_runner_reports(sandboxes: SandboxPool, kind: str) -> None:
    files = {**FILES, "runtests.py": RUNNERS[kind]}
    task = replace(TASK, workspace=Workspace(files), oracle=replace(TASK.oracle, timeout_seconds=2.0))
    assert (await grade(task, GOLD, sandboxes)).solved
    assert not (await grade(task, patch(calc=FILES["calc.py"] + "# nothing\n"), sandboxes)).solved


@pytest.mark.parametrize("kind", ["reports failures", "stops at the first failure", "hangs once a test has failed"])
async def test_a_log_that_is_lost_in_the_control_is_forged(sandboxes: SandboxPool, kind: str) -> None:
    files = {**FILES, "runtests.py": RUNNERS[kind]}
    task = replace(TASK, workspace=Workspace(files), oracle=replace(TASK.oracle, timeout_seconds=2.0))
    result = await grade(task, patch(calc=FILES["calc.py"] + LOST), sandboxes, GradingSettings("fraction"))
    assert (result.evidence["outcome"], result.value) == ("forged", 0.0)
    assert "not reported as failed" in result.evidence["rejection_reason"]


@pytest.mark.parametrize("kind", RUNNERS)
async def test_printed_passes_are_forged_whatever_the_runner_reports(sandboxes: SandboxPool, kind: str) -> None:
    files = {**FILES, "runtests.py": RUNNERS[kind]}
    task = replace(TASK, workspace=Workspace(files), oracle=replace(TASK.oracle, timeout_seconds=2.0))
    always = LOST.replace("if not", "if 0 and")
    assert (await grade(task, patch(calc=FILES["calc.py"] + always), sandboxes)).evidence["outcome"] == "forged"
