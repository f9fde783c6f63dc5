"""Grade by a test log: the task's command prints a `PASSED id` or `FAILED id` line for each test, as pytest does.

The command runs in a fresh sandbox that the agent never touched. The patch is applied here, to the task's pristine
files or to the image's, and never by a program in the sandbox. Changes of files that decide the verdict are undone
(`rewards.guard`). Code under test can make its process print anything. So a log that would be rewarded is believed only
if mutated tests fail (`rewards.negative_control`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass

from slime_swe.data_sources.task import Task
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.patches import binary_paths
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial, image_limits
from slime_swe.rewards.guard import graded_files
from slime_swe.rewards.mutation import mutate, tests_in
from slime_swe.rewards.negative_control import ControlRun, with_negative_control
from slime_swe.rewards.patched_image import patch_image
from slime_swe.rollout.sandbox.base import ExecResult, Limits, Sandbox, SandboxError, Sandboxes

LIMITS = Limits(output_bytes=1 << 20)  # more than an agent sees: a test's line must not be lost in a long log


@dataclass(frozen=True)
class _Run:
    """One run of the command. ignored: where the patch counts for nothing. mutated: the tests that were."""

    result: ExecResult
    ignored: list[str]
    mutated: frozenset[str] = frozenset()


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """The tests' results with the patch; an empty one changes nothing. Raises `PatchError`, `GraderError`."""
    run = _run_in_image if task.workspace.image else _run_in_files

    async def run_mutated(text: str, tests: Collection[str]) -> ControlRun:
        """A run that hangs has reported the tests before: those results stand."""
        done = await run(task, text, sandboxes, tests)
        results = await asyncio.to_thread(parse_test_log, done.result.output)
        failed, passed = ({name for name in done.mutated if results.get(name) is verdict} for verdict in (False, True))
        return ControlRun(done.mutated, frozenset(failed), frozenset(passed))

    try:
        trial = await asyncio.to_thread(_trial, task, await run(task, patch, sandboxes), patch)
        return await with_negative_control(trial, task.oracle, patch, run_mutated)
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


async def _run_in_files(task: Task, patch: str, sandboxes: Sandboxes, mutated: Collection[str] = ()) -> _Run:
    files, ignored = await graded_files(task, patch)
    async with sandboxes.open(files, LIMITS) as sandbox:
        return await _run(sandbox, task, ignored, mutated)


async def _run_in_image(task: Task, patch: str, sandboxes: Sandboxes, mutated: Collection[str] = ()) -> _Run:
    limits = image_limits(task.oracle.timeout_seconds)
    async with sandboxes.open(task.workspace.files, limits, task.workspace.image) as sandbox:
        ignored = await patch_image(sandbox, task, patch)
        return await _run(sandbox, task, ignored, mutated)


async def _run(sandbox: Sandbox, task: Task, ignored: list[str], to_mutate: Collection[str]) -> _Run:
    oracle = task.oracle
    mutated = await write_tests(sandbox, (*oracle.fail_to_pass, *oracle.pass_to_pass), to_mutate)
    if to_mutate and not mutated:
        return _Run(ExecResult(None, "", 0.0), ignored)
    return _Run(await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds), ignored, mutated)


async def write_tests(sandbox: Sandbox, tests: Collection[str], to_mutate: Collection[str]) -> frozenset[str]:
    """Write the files of these tests (ids) once more, some of the tests mutated. Returns those that could be mutated.
    Raises `GraderError` where a file can't be written.

    This is done before every run, even if nothing is mutated. Otherwise a file that is newer in one of the runs would
    show the code under test which run it is in.
    """
    done: set[str] = set()
    for path in sorted({test.partition("::")[0] for test in tests}):
        if not path.endswith(".py"):
            continue
        try:
            source = await sandbox.read_file(path)
        except OSError:
            continue
        text, found = mutate(source, tests_in(path, to_mutate), random.Random())
        try:
            await sandbox.write_file(path, text)
        except OSError as error:
            raise GraderError(f"the test file {path} can't be written: {error}") from error
        done |= found
    return frozenset(done)


def _trial(task: Task, run: _Run, patch: str) -> Trial:
    results = {} if run.result.timed_out else parse_test_log(run.result.output)
    tests = {name: results.get(name, False) for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    details = {"ignored_paths": run.ignored, "binary_paths": binary_paths(patch)}
    return Trial(tests, all(tests.values()), run.result.output, run.result.exit_code, run.result.timed_out, details)
