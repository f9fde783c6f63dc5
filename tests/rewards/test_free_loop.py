"""The loop that runs all episodes does not wait for what one policy wrote, neither when it is graded nor when its patch
is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import HarnessOracle, Image, Task, TestsOracle, Workspace
from slime_swe.patches import PatchError
from slime_swe.rewards import mutated_files
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.mutated_files import records_in
from slime_swe.rewards.room import image_limits
from slime_swe.rewards.swebench.harness import apply_in
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import Limits
from tests.rewards.image_backend import sandboxes_with
from tests.rollout.watch import watched

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINES = "".join(f"line {number}\n" for number in range(16_000))
FILES = {"long.txt": LINES, "x": "a\n", "run.py": "print('PASSED t.py::t')\n"}
TASK = Task("t", "s", Workspace(FILES), TestsOracle(("t.py::t",), (), ("run.py",), "python3 run.py; cat log"))
MOST = 1 << 20  # bytes that a patch may have
PATCHES = {
    "hunks": "--- a/x\n+++ b/x\n" + "@@ -1 +1 @@\n-a\n+b\n" * 50_000,
    "files": "".join(f"diff --git a/{n} b/{n}\nnew file mode 100644\n" for n in range(10_000)),
    "names": "--- a b c d\n" * 80_000,
    "quotes": "--- " + '"\\' * 500_000,
    "folders": f"--- /dev/null\n+++ b/{'a/' * 400_000}x\n@@ -0,0 +1 @@\n+x\n",
    "deep files": "".join(f"--- /dev/null\n+++ b/{n}/{'a/' * 2_000}x\n@@ -0,0 +1 @@\n+x\n" for n in range(200)),
    "a log": "--- /dev/null\n+++ b/log\n@@ -0,0 +1,70000 @@\n" + "+PASSED a::b\n" * 70_000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with sandboxes_with("free", FILES) as pool:
        yield pool


@pytest.mark.parametrize("name", PATCHES)
async def test_grading_a_patch(sandboxes: SandboxPool, name: str):
    assert len(PATCHES[name]) <= MOST
    async with watched() as loop:
        score = await grade(TASK, PATCHES[name], sandboxes, GradingSettings(negative_control=False))
    assert score.evidence["outcome"] in ("solved", "unappliable_patch")
    loop.assert_free()


async def test_reading_what_tests_have_recorded(sandboxes: SandboxPool):
    """Code under test can write to the file, too."""
    files = {"records": "".join(f"{n} x\n" for n in range(140_000))}
    async with sandboxes.open(files, image_limits(60)) as sandbox, watched() as loop:
        records = await records_in(sandbox, "records")
    assert len(records) > 100_000
    loop.assert_free()


@pytest.mark.parametrize(
    ("made", "recorded"),
    [
        ("echo 7 x >records", {7: {"x"}}),
        ("mkfifo records", {}),
        ("mkfifo fifo; ln -s fifo records", {}),
        ("ln -s /dev/zero records", {}),
        ("echo 7 x >other; ln -s other records", {}),
        ("python3 -c 'import socket; socket.socket(1).bind(\"records\")'", {}),
        ("mkdir records", {}),
        ("ln -s records records", {}),
        ("true", {}),
    ],
)
async def test_what_is_in_the_place_of_a_record_is_not_waited_for(sandboxes: SandboxPool, monkeypatch, made, recorded):
    monkeypatch.setattr(mutated_files, "_READ_SECONDS", 600.0)
    async with sandboxes.open({}, image_limits(60)) as sandbox, asyncio.timeout(60):
        await sandbox.exec(made)
        assert await records_in(sandbox, "records") == recorded
        left = await sandbox.exec("[ -e records ] || [ -L records ]")
        assert left.exit_code == int(made != "mkdir records")


@pytest.mark.parametrize("name", ["names", "quotes", "deep files"])
async def test_applying_a_patch_for_the_harness(sandboxes: SandboxPool, name: str):
    oracle = HarnessOracle(("t",), (), ("run.py",), eval_script="x", log_parser="x")
    async with sandboxes.open({}, image=Image("free")) as sandbox, watched() as loop:
        with pytest.raises(PatchError):
            await apply_in(sandbox, oracle, PATCHES[name])
    loop.assert_free()


WORK = {
    "a line after each": "sed -i 's/$/\\nx/' long.txt",
    "in the other order": "tac long.txt >l && mv l long.txt",
    "many files": "for n in $(seq 2000); do echo $n >$n; done",
    "one long line": "head -c 3000000 /dev/zero | tr '\\0' a >long.txt",
    "empty lines": "head -c 3000000 /dev/zero | tr '\\0' '\\n' >long.txt",
}


@pytest.mark.parametrize("name", WORK)
async def test_making_the_patch_of_a_sandbox(sandboxes: SandboxPool, name: str):
    async with sandboxes.open(FILES, Limits()) as sandbox:
        assert (await sandbox.exec(WORK[name])).exit_code == 0
        async with watched() as loop:
            patch = await sandbox.diff()
    assert patch
    loop.assert_free()
