"""`Evaluation`: the runs of one task's eval script, each in a fresh sandbox.

Where a run may be controlled (`rewards.swebench.control`), the tests are written once more before they are run, as they
are or falsified. Both ways the script and the files are the same, and so is the time at which they are written: what
the tests want is all that tells the code under test which of the runs it is in.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from data_sources.task import HarnessOracle, Image, Task
from rewards.limits import image_limits
from rewards.swebench.apply import Applied, apply_in
from rewards.swebench.instance import image_of, instance_of, oracle_of
from rewards.verdict import Sandboxes
from rollout.patch_reader import header_paths
from rollout.sandbox.base import ExecResult, Sandbox, SandboxError

_MARKER = ">>>>> Start Test Output"
_SCRIPT, _TESTS = "/tmp/eval.sh", "/tmp/tests"

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class RestoredTests:
    """shown: as the image has them, where agents see them. restored: as the script restores them, for the run."""

    shown: Files
    restored: Files


@dataclass(frozen=True)
class Evaluation:
    """One task, its eval script as the harness gives it, and where it is run."""

    task: Task
    script: str
    sandboxes: Sandboxes

    @cached_property
    def oracle(self) -> HarnessOracle:
        return oracle_of(self.task)

    @cached_property
    def instance(self) -> dict[str, Any]:
        return instance_of(self.task)

    @cached_property
    def image(self) -> Image:
        """The script prepares its own shell."""
        return replace(image_of(self.task), setup="")

    @property
    def test_files(self) -> list[str]:
        """The Python files that the script restores, unless the gold patch changes them too."""
        gold = header_paths(self.oracle.gold_patch)
        return [path for path in self.oracle.protected if path.endswith(".py") and path not in gold]

    async def run(self, patch: str, tests: Files) -> tuple[Applied | None, ExecResult]:
        """The script with a patch (an empty one is not applied) and with these tests, which may be none: then it is the
        script as it is. Raises `PatchError`, `GraderError`, `SandboxError`."""
        async with self._sandbox() as sandbox:
            applied = await apply_in(sandbox, self.oracle, patch) if patch else None
            return applied, await self.run_in(sandbox, tests)

    async def run_in(self, sandbox: Sandbox, tests: Files) -> ExecResult:
        """The same in a sandbox that has the patch."""
        for path, content in tests.items():
            await _write(sandbox, f"{_TESTS}/{path}", content)
        return await self._run(sandbox, self._with_tests() if tests else self.script)

    async def restored_tests(self) -> RestoredTests:
        """The test files without a patch; none where the script does not mark where they run."""
        before, marked = self._halves()
        if not marked or not self.test_files:
            return RestoredTests({}, {})
        async with self._sandbox() as sandbox:
            shown = await _read(sandbox, self.test_files)
            await self._run(sandbox, before)
            return RestoredTests(shown, await _read(sandbox, self.test_files))

    def _sandbox(self) -> Any:
        limits = image_limits(self.oracle.timeout_seconds)
        return self.sandboxes.open(self.task.workspace.files, limits, self.image)

    async def _run(self, sandbox: Sandbox, script: str) -> ExecResult:
        await _write(sandbox, _SCRIPT, script.encode())
        return await sandbox.exec(f"/bin/bash {_SCRIPT}", timeout=self.oracle.timeout_seconds)

    def _with_tests(self) -> str:
        before, marked = self._halves()
        return f"{before}cp -R {_TESTS}/. {shlex.quote(self.image.folder)}/\n{marked}"

    def _halves(self) -> tuple[str, str]:
        """Up to the line that marks where the tests' output starts, and from there on."""
        lines = self.script.splitlines(keepends=True)
        at = next((number for number, line in enumerate(lines) if _MARKER in line), len(lines))
        return "".join(lines[:at]), "".join(lines[at:])


async def _write(sandbox: Sandbox, path: str, content: bytes) -> None:
    try:
        await sandbox.write_file(path, content)
    except OSError as error:
        raise SandboxError(f"{path} can't be written: {error}") from error


async def _read(sandbox: Sandbox, paths: Collection[str]) -> Files:
    """Those that are there."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = await sandbox.read_file(path)
    return found
