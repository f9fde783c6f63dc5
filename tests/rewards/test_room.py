"""A file of the grader that can't be written: the policy's failure where its patch fills the sandbox's disk, and the
machine's where the machine's disk is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slime_swe.data_sources.task import HarnessOracle, Task, TestsOracle, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import MAX_PATCH_BYTES, PatchError
from slime_swe.rewards import room
from slime_swe.rewards.grade import GraderError, grade
from slime_swe.rewards.redteam.gate import leaky_image
from slime_swe.rewards.swebench import grader
from slime_swe.rewards.swebench.grader import Evaluation, RestoredTests
from slime_swe.sandbox.base import Limits, Sandbox, SandboxError, Sandboxes
from slime_swe.sandbox.pool import SandboxPool

Filler = Callable[[Sandbox], Awaitable[object]]
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "run.py": "import sys\nsys.path.insert(0, '.')\nimport tests.test_calc as t\ntry:\n    t.test_add()\n"
    "    print('PASSED tests/test_calc.py::test_add')\n"
    "except AssertionError:\n    print('FAILED tests/test_calc.py::test_add')\n",
    "tests/test_calc.py": TEST + "#" * (4095 - len(TEST)) + "\n",  # a block; what withholds a value takes another
}
GOLD = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
ORACLE = TestsOracle(
    ("tests/test_calc.py::test_add",), (), ("run.py", "tests/test_calc.py"), "python3 -B run.py", GOLD, runner="lines"
)
TASK = Task("room", "add subtracts", Workspace(FILES), ORACLE)


def patch_that_unpacks(folder: Path, size: int) -> str:
    """Git's own patch for a file of so many bytes."""
    (folder / "large").write_bytes(bytes(size))
    diff = ["git", "diff", "--no-index", "--binary", "/dev/null", "large"]
    return subprocess.run(diff, cwd=folder, check=False, capture_output=True, text=True).stdout


async def test_a_patch_that_fills_the_disk_of_its_sandbox_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader, "image_limits", lambda seconds: Limits(disk_bytes=16 << 20))
    oracle = HarnessOracle(("t",), (), ("tests/test_calc.py",), eval_script="true", log_parser="x", gold_patch=GOLD)
    restored = RestoredTests({}, {"tests/test_calc.py": bytes(3 << 20)})
    async with SandboxPool("overlay") as pool:
        try:
            task = Task("full", "s", Workspace({}, await asyncio.to_thread(leaky_image, "overlay")), oracle)
            await pool._backend.start()
        except (UserError, SandboxError) as error:
            pytest.skip(str(error))
        graded = Evaluation(task, "true\n", pool)
        done = await graded.run(patch_that_unpacks(tmp_path, 8 << 20), restored)
        assert done.applied is not None and done.result.exit_code == 0
        for size in (14 << 20, 40 << 20):
            patch = patch_that_unpacks(tmp_path, size)
            assert len(patch) < MAX_PATCH_BYTES
            with pytest.raises(PatchError, match="No space left on device"):
                async with room.cause_found(patch, graded.pristine):
                    await graded.run(patch, restored)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine's disk, as plain sandboxes see it: of 8 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def filled(pool: SandboxPool, filler: Filler) -> Sandboxes:
    """Sandboxes of the pool. The disk is filled once one with a patch is open, in both runs of a grading."""

    class Filled:
        @asynccontextmanager
        async def open(self, files, limits=None, image=None, layers=()) -> AsyncIterator[Sandbox]:  # type: ignore[no-untyped-def]
            async with pool.open(files, limits, image, layers) as sandbox:
                if files["calc.py"] != FILES["calc.py"]:
                    await filler(sandbox)
                yield sandbox

    return Filled()


async def test_a_sandbox_that_fills_the_disk_fails(small_disk: Path) -> None:
    """Also where it has no disk of its own: what it held is gone before a fresh one is asked."""

    async def by_itself(sandbox: Sandbox) -> None:
        await sandbox.exec("head -c 60000000 /dev/zero >large")

    async with SandboxPool("subprocess") as pool:
        score = await grade(TASK, GOLD, filled(pool, by_itself))
        assert score.evidence["outcome"] == "unappliable_patch" and score.value == -1
        assert "the patch leaves no room" in score.evidence["detail"]
        assert (await grade(TASK, GOLD, pool)).solved


async def test_a_machine_whose_disk_is_full_is_no_failure_of_the_policy(small_disk: Path) -> None:
    async def by_another(sandbox: Sandbox) -> None:
        fill(small_disk / "of_another")

    async with SandboxPool("subprocess") as pool:
        with pytest.raises(GraderError):
            await grade(TASK, GOLD, filled(pool, by_another))
        (small_disk / "of_another").unlink()
        assert (await grade(TASK, GOLD, pool)).solved


async def test_a_refusal_that_speaks_of_a_full_disk_is_looked_into(small_disk: Path) -> None:
    """A patch is refused where git finds no room; so it is where it only says so."""
    said = PatchError("error: unable to write file 'calc.py': No space left on device")
    async with SandboxPool("subprocess") as pool:
        with pytest.raises(PatchError, match="unable to write"):
            async with room.cause_found("a patch", lambda: pool.open({})):
                raise said
        fill(small_disk / "of_another")
        with pytest.raises((GraderError, SandboxError)):
            async with room.cause_found("a patch", lambda: pool.open({})):
                raise said


async def test_where_there_is_no_patch_it_is_not_the_policy_s() -> None:
    def never() -> None:
        raise AssertionError

    with pytest.raises(GraderError, match="can't be written"):
        async with room.cause_found("", never):  # type: ignore[arg-type]
            raise room.UnwrittenError("a", 1, OSError("full"))
