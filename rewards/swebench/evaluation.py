"""`Evaluation`: the runs of one task's eval script, each in a fresh sandbox.

A control's run (`rewards.swebench.control`) has the tests falsified, and what the tests want is all that tells the code
under test which of the runs it is in. Where the script brings its tests in a patch, that patch brings falsified ones
(`rewards.swebench.script`). Where it does not, every run that may be controlled copies the test files once more, as
they are or falsified.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from data_sources.task import HarnessOracle, Image, Task
from rewards.limits import image_limits
from rewards.swebench.apply import Applied, apply_in
from rewards.swebench.instance import image_of, instance_of, oracle_of
from rewards.swebench.script import Files, before_the_tests, bringing, brings_tests, copying
from rewards.verdict import Sandboxes
from rollout.patch_reader import header_paths
from rollout.sandbox.base import ExecResult, Sandbox, SandboxError

_SCRIPT, _TESTS = "/tmp/eval.sh", "/tmp/tests"


@dataclass(frozen=True)
class RestoredTests:
    """shown: as the image has them, where agents see them. restored: as the script restores them, for the run."""

    shown: Files
    restored: Files


NO_TESTS = RestoredTests({}, {})


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

    @cached_property
    def brings_tests(self) -> bool:
        return brings_tests(self.script)

    async def run(
        self, patch: str, tests: RestoredTests = NO_TESTS, falsified: Files | None = None
    ) -> tuple[Applied | None, ExecResult]:
        """The script with a patch (an empty one is not applied).

        tests: None known: the script is run as it is. falsified: what test files hold in place of what is restored.
        Raises `PatchError`, `GraderError`, `SandboxError`.
        """
        async with self._sandbox() as sandbox:
            applied = await apply_in(sandbox, self.oracle, patch) if patch else None
            return applied, await self.run_in(sandbox, tests, falsified)

    async def run_in(
        self, sandbox: Sandbox, tests: RestoredTests = NO_TESTS, falsified: Files | None = None
    ) -> ExecResult:
        """The same in a sandbox that has the patch."""
        if self.brings_tests:
            script = bringing(self.script, tests.shown, falsified) if falsified else self.script
            return await self._run(sandbox, script)
        files = {**tests.restored, **(falsified or {})}
        for path, content in files.items():
            await _write(sandbox, f"{_TESTS}/{path}", content)
        return await self._run(sandbox, copying(self.script, _TESTS, self.image.folder) if files else self.script)

    async def restored_tests(self) -> RestoredTests:
        """The test files without a patch; none where the script does not mark where they run."""
        before = before_the_tests(self.script)
        if before == self.script or not self.test_files:
            return NO_TESTS
        async with self._sandbox() as sandbox:
            shown = await _read(sandbox, self.test_files)
            await self._run(sandbox, before)
            return RestoredTests(shown, await _read(sandbox, self.test_files))

    def _sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        limits = image_limits(self.oracle.timeout_seconds)
        return self.sandboxes.open(self.task.workspace.files, limits, self.image)

    async def _run(self, sandbox: Sandbox, script: str) -> ExecResult:
        await _write(sandbox, _SCRIPT, script.encode())
        return await sandbox.exec(f"/bin/bash {_SCRIPT}", timeout=self.oracle.timeout_seconds)


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
