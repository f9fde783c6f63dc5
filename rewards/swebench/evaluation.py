"""`Evaluation`: the runs of one task's eval script, each in a fresh sandbox.

A run of the negative control has its tests mutated. Code under test can read the script. So nothing else may differ
between runs that code must not tell apart. Others have a line of options for pytest before the tests besides.

- A script that embeds its tests as a patch, as SWE-bench's do, gets mutated tests in that patch.
- For a script that restores its tests in another way, every run that may be controlled copies the test files once more
  before the tests, unchanged or mutated.
"""

from __future__ import annotations

import re
import shlex
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from slime_swe.data_sources.corpora.eval_prologue import START
from slime_swe.data_sources.task import HarnessOracle, Image, Task
from slime_swe.patches import header_paths, make_patch, paths_of
from slime_swe.rewards.grade import image_limits
from slime_swe.rewards.mutated_files import Files, read_files, records_in
from slime_swe.rewards.remembered import remembered
from slime_swe.rewards.room import cause_found, put
from slime_swe.rewards.swebench.apply import Applied, apply_in
from slime_swe.rewards.swebench.harness import image_of, instance_of, oracle_of
from slime_swe.rewards.withheld import Records
from slime_swe.rollout.sandbox.base import ExecResult, Sandbox, Sandboxes

_LOG_BYTES = 16 << 20
_CONTROL_LOG_BYTES = 4 << 20  # what failing tests print may be anything, and a parser takes a second for each 2 MiB
_SCRIPT, _TESTS = "/tmp/eval.sh", "/tmp/tests"
_HERE_DOCUMENT = re.compile(r"<<\s*(['\"])(?P<end>\w+)\1[^\n]*\n(?P<body>.*?)^(?P=end)$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)


@dataclass(frozen=True)
class RestoredTests:
    """shown: as the image has them, where agents see them. restored: as the script restores them, for the run."""

    shown: Files
    restored: Files


NO_TESTS = RestoredTests({}, {})
NO_FILES: Files = {}


@dataclass(frozen=True)
class Done:
    """A run of the script. applied: None where the patch is empty."""

    applied: Applied | None
    result: ExecResult
    records: Records


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
        """The files that the script restores, unless the gold patch changes them too."""
        gold = header_paths(self.oracle.gold_patch)
        return [path for path in self.oracle.protected if path not in gold]

    async def run(
        self,
        patch: str,
        tests: RestoredTests = NO_TESTS,
        mutated: Files = NO_FILES,
        options: str = "",
        record_to: str = "",
    ) -> Done:
        """Run the script with a patch (an empty one is not applied).

        tests: as `restored_tests` gives them; without them the script is run as it is. mutated: what some test files
        hold instead. options: shell before the tests. record_to: the file in which they record values. Raises
        `PatchError`, `UnwrittenError`, `GraderError`, `SandboxError`.
        """
        async with self.pristine(_CONTROL_LOG_BYTES if mutated else _LOG_BYTES) as sandbox:
            applied = await apply_in(sandbox, self.oracle, patch) if patch else None
            result = await self.run_in(sandbox, tests, mutated, options)
            return Done(applied, result, await records_in(sandbox, record_to))

    async def run_in(
        self, sandbox: Sandbox, tests: RestoredTests = NO_TESTS, mutated: Files = NO_FILES, options: str = ""
    ) -> ExecResult:
        """The same in a sandbox that has the patch."""
        script = with_line(self.script, options)
        if embeds_test_patch(script):
            return await self._run(sandbox, with_embedded_tests(script, tests.shown, mutated) if mutated else script)
        files = {**tests.restored, **mutated}
        for path, content in files.items():
            await put(sandbox, f"{_TESTS}/{path}", content)
        return await self._run(sandbox, with_copied_tests(script, _TESTS, self.image.folder) if files else script)

    async def restored_tests(self) -> RestoredTests:
        """The test files without a patch; none where the script does not mark where they run."""
        before = before_the_tests(self.script)
        if before == self.script or not self.test_files:
            return NO_TESTS
        async with cause_found("", self.pristine), self.pristine() as sandbox:
            shown = await read_files(sandbox, self.test_files)
            await self._run(sandbox, before)
            return RestoredTests(shown, await read_files(sandbox, self.test_files))

    def pristine(self, log_bytes: int = _LOG_BYTES) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox without a patch."""
        limits = replace(image_limits(self.oracle.timeout_seconds), output_bytes=log_bytes)
        return self.sandboxes.open(self.task.workspace.files, limits, self.image)

    async def _run(self, sandbox: Sandbox, script: str) -> ExecResult:
        await put(sandbox, _SCRIPT, script.encode())
        return await sandbox.exec(f"/bin/bash {_SCRIPT}", timeout=self.oracle.timeout_seconds)


async def restored_tests(evaluation: Evaluation) -> RestoredTests:
    """`Evaluation.restored_tests`, read once for all patches of a task."""
    key = (evaluation.image.name, evaluation.script, evaluation.oracle.protected)
    return await remembered("restored tests", key, evaluation.restored_tests)


def before_the_tests(script: str) -> str:
    """The script up to the line that marks where the tests' output starts; all of it where none does."""
    before, marked, _ = script.partition(START)
    return before[: before.rfind("\n") + 1] if marked else script


def embeds_test_patch(script: str) -> bool:
    """Whether it has one patch, in a here-document before the tests, in which no file has two names."""
    patch = _patch_in(script)
    return patch is not None and all(len(paths_of(section)) == 1 for section in _sections(patch["body"]))


def with_embedded_tests(script: str, shown: Files, tests: Files) -> str:
    """The script with another test patch, which turns the shown test files into these. It must embed a patch."""
    patch = _patch_in(script)
    assert patch is not None, script
    others = [section for section in _sections(patch["body"]) if tests.keys().isdisjoint(paths_of(section))]
    made = make_patch({path: shown[path] for path in tests if path in shown}, tests)
    return script[: patch.start("body")] + "".join(others) + made + script[patch.end("body") :]


def with_copied_tests(script: str, source: str, folder: str) -> str:
    """The script with all that is in `source` copied to `folder` before the tests."""
    return with_line(script, f"cp -R {shlex.quote(source)}/. {shlex.quote(folder)}/\n")


def with_line(script: str, line: str) -> str:
    """The script with this before the tests."""
    before = before_the_tests(script)
    return before + line + script.removeprefix(before)


def _patch_in(script: str) -> re.Match[str] | None:
    found = [match for match in _HERE_DOCUMENT.finditer(before_the_tests(script)) if _sections(match["body"])]
    return found[0] if len(found) == 1 else None


def _sections(patch: str) -> list[str]:
    """One of each file."""
    return [section for section in _SECTION.split(patch) if section.startswith("diff --git ")]
