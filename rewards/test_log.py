"""Grade by a test log: the task's command prints a `PASSED id` or `FAILED id` line for each test, as pytest does.

The command runs in a fresh sandbox that the agent never touched. The patch is applied here, to the task's pristine
files or to the image's, and never by a program in the sandbox. Changes of files that decide the verdict are undone
(`rewards.guard`). Code under test can make its process print anything. So a log that would be rewarded is believed only
if mutated tests fail, and what they withhold is given (`rewards.negative_control`).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from slime_swe.data_sources.task import Oracle, Task, TestsOracle
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.patches import PatchError, binary_paths, paths_of
from slime_swe.rewards.data_cases import JSON, SUFFIXES
from slime_swe.rewards.grade import LIMITS, GraderError, GradingSettings, Trial
from slime_swe.rewards.guard import Files, folders_of, graded_files
from slime_swe.rewards.mutated_files import (
    MOST_CONTROLS,
    MutatedFiles,
    alter_files,
    known_control,
    mutate_files,
    pytest_options,
    read_files,
    records_in,
    rewrite_files,
)
from slime_swe.rewards.negative_control import ControlRun, uncontrolled, with_negative_control
from slime_swe.rewards.room import cause_found, image_limits, put
from slime_swe.rewards.shared import cached
from slime_swe.rewards.withheld import Records
from slime_swe.sandbox.base import ExecResult, Sandbox, SandboxError, Sandboxes
from slime_swe.sandbox.many_files import null_terminated, read_many, write_many

_UNCONTROLLED = GradingSettings(negative_control=False)


@dataclass(frozen=True)
class _Done:
    """One run of the command. ignored: where the patch counts for nothing. mutated: what was done to the tests."""

    result: ExecResult
    ignored: list[str]
    mutated: MutatedFiles
    records: Records


@dataclass(frozen=True)
class Runs:
    """The runs of one patch: a `ControlledRuns`."""

    task: Task
    patch: str
    sandboxes: Sandboxes

    async def first(self) -> Trial:
        return await asyncio.to_thread(_trial, self.task, await self._run(), self.patch)

    async def control(self, tests: Sequence[str]) -> ControlRun:
        done = await self._run(dict.fromkeys(tests, 0), record_to=f"/tmp/{secrets.token_hex(8)}")
        return await asyncio.to_thread(_reported, done)

    async def gold_control(self, tests: Sequence[str]) -> ControlRun:
        return await self._known(self.task.oracle.gold_patch, tests)

    async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
        return await self._known("", tests)

    async def _known(self, patch: str, tests: Sequence[str]) -> ControlRun:
        return await known_control(self.task, patch, self.sandboxes, tests, replace(self, patch=patch).control)

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        return await asyncio.to_thread(_reported, await self._run(forms, pytest_options(only)))

    async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        runs = replace(self, patch=self.task.oracle.gold_patch)
        key = ("altered", *map(str, sorted(forms.items())), "only", *only)
        return await known_control(self.task, runs.patch, self.sandboxes, key, lambda _: runs.altered(forms, only))

    def pristine(self) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox without a patch."""
        workspace = self.task.workspace
        limits = LIMITS if workspace.image is None else image_limits(self.task.oracle.timeout_seconds)
        return self.sandboxes.open(workspace.files, limits, workspace.image)

    async def _run(self, forms: Mapping[str, int] | None = None, options: str = "", record_to: str = "") -> _Done:
        """Run with these tests altered. options: shell before the command. record_to: mutate them instead, withhold
        values, and record to this file what is given in their place."""
        task, patch, forms = self.task, self.patch, forms or {}
        if task.workspace.image is None:
            files, ignored = await graded_files(task, patch, added=task.oracle.grading_files)
            async with self.sandboxes.open(files, LIMITS) as sandbox:
                return await _run(sandbox, task, ignored, forms, options, record_to)
        async with self.pristine() as sandbox:
            ignored = await patch_image(sandbox, task, patch)
            return await _run(sandbox, task, ignored, forms, options, record_to)


# Apply a patch to the repository of an image, for graders whose command runs there.
#
# Python reads and applies the patch; in the sandbox are only the means to list, read, write and remove files. As git
# does, it changes nothing that is a link or behind one.
_LIST_FILES = "find . -name .git -prune -o \\( -type f -o -type l \\) -printf '%y%P\\0'"
_LINK = "l"  # what `find` calls it
_REMOVED = "/tmp/.removed"  # the paths of files to remove
_REMOVE = f"xargs -0 -r rm -f -- <{_REMOVED}"
_REMOVE_FOLDERS = f"xargs -0 -r rmdir -p --ignore-fail-on-non-empty -- <{_REMOVED} 2>/dev/null; true"


async def patch_image(sandbox: Sandbox, task: Task, patch: str) -> list[str]:
    """Apply a patch to the image's repository, with the task's files over it. Returns the paths where it is ignored.

    Raises `PatchError`, and `GraderError` where the repository can't be listed.
    """
    files, links = await _listed(sandbox)
    paths = await asyncio.to_thread(paths_of, patch)
    if linked := [path for path in paths if not links.isdisjoint({path, *folders_of(path)})]:
        raise PatchError(f"{linked[0]} is a link of the repository, or behind one")
    try:
        named = await read_many(sandbox, [path for path in paths if path in files])
    except OSError as error:
        raise PatchError(f"a file that the patch names can't be read: {error}") from error
    pristine: Files = {**named, **task.workspace.files}
    patched, ignored = await graded_files(task, patch, pristine, files)
    await _write_changes(sandbox, pristine, patched)
    return ignored


async def _listed(sandbox: Sandbox) -> tuple[frozenset[str], frozenset[str]]:
    """List every file and every link of the repository."""
    result = await sandbox.exec(_LIST_FILES)
    if result.exit_code != 0 or result.truncated:
        raise GraderError(f"the image's files can't be listed: {result.output[-500:]!r}")
    entries = list(filter(None, result.output.split("\0")))
    links = frozenset(entry[1:] for entry in entries if entry[0] == _LINK)
    return frozenset(entry[1:] for entry in entries) - links, links


async def _write_changes(sandbox: Sandbox, before: Files, after: Files) -> None:
    """Turn the files `before`, which the sandbox has, into those `after`."""
    deleted = [path for path in before if path not in after]
    try:
        if deleted:
            await _remove(sandbox, deleted)
        changed = {path: content for path, content in after.items() if before.get(path) != content}
        await write_many(sandbox, {path: _in_bytes(content) for path, content in changed.items()})
    except OSError as error:
        raise PatchError(f"a file of the patch can't be written: {error}") from error


async def _remove(sandbox: Sandbox, paths: Iterable[str]) -> None:
    """Remove the files, and the folders that they leave empty, so that a file can be there."""
    await sandbox.write_file(_REMOVED, null_terminated(paths))
    removed = await sandbox.exec(_REMOVE)
    if removed.exit_code != 0:
        raise PatchError(f"a file of the patch can't be removed: {removed.output[-500:]!r}")
    folders = {str(PurePosixPath(path).parent) for path in paths} - {"."}
    await sandbox.write_file(_REMOVED, null_terminated(sorted(folders)))
    await sandbox.exec(_REMOVE_FOLDERS)


def _in_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Return the tests' results with the patch; an empty one changes nothing. Raises `PatchError`, `GraderError`."""
    if not (isinstance(task.oracle, TestsOracle) and task.oracle.missing == "as_gold"):
        return await controlled(Runs(task, patch, sandboxes), settings)
    named = await _named_by_gold(task, sandboxes)
    trial = await controlled(Runs(_with_tests(task, named), patch, sandboxes), settings)
    return await asyncio.to_thread(_with_unnamed, task, trial, named)


async def controlled(runs: Runs, settings: GradingSettings) -> Trial:
    """Return the first run's trial, under the negative control. Raises as `try_patch` does."""
    try:
        async with cause_found(runs.patch, runs.pristine):
            if runs.patch and settings.negative_control:
                return await with_negative_control(runs.task, runs)
            return uncontrolled(await runs.first())
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


async def _named_by_gold(task: Task, sandboxes: Sandboxes) -> frozenset[str]:
    """Return the expected tests that the gold patch's log names, looked up once for all patches of a task.

    All of them are returned where it names none, since then nothing is known: the patch can't be applied, or the run
    has broken off.
    """
    expected = frozenset((*task.oracle.fail_to_pass, *task.oracle.pass_to_pass))

    async def named() -> frozenset[str]:
        try:
            trial = await controlled(Runs(task, task.oracle.gold_patch, sandboxes), _UNCONTROLLED)
        except PatchError:
            return frozenset()
        results = {} if trial.timed_out else await asyncio.to_thread(parse_test_log, trial.log)
        return expected & results.keys()

    key = (sandboxes, hashlib.sha256(repr(task).encode(errors="backslashreplace")).digest())
    return await cached("named by gold", key, named, keep=bool, most=MOST_CONTROLS) or expected


def _with_tests(task: Task, names: Collection[str]) -> Task:
    """Return the task with these of its tests alone."""
    failing, passing = (
        tuple(name for name in tests if name in names) for tests in (task.oracle.fail_to_pass, task.oracle.pass_to_pass)
    )
    return replace(task, oracle=replace(task.oracle, fail_to_pass=failing, pass_to_pass=passing))


def _with_unnamed(task: Task, trial: Trial, named: Collection[str]) -> Trial:
    """Return a trial of the tests that the gold patch's log names, with what its own log says of the others."""
    results = {} if trial.timed_out else parse_test_log(trial.log)
    complete = results.keys() >= set(named)
    expected = (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)
    tests = {name: trial.tests.get(name, results.get(name, complete)) for name in expected}
    absent = [name for name in tests if name not in named and name not in results]
    details = {**trial.details, "missing_as_gold": absent if complete else []}
    return replace(trial, tests=tests, solved=trial.solved and all(tests.values()), details=details)


async def _run(
    sandbox: Sandbox, task: Task, ignored: list[str], forms: Mapping[str, int], options: str, record_to: str
) -> _Done:
    oracle = task.oracle
    mutated = await write_tests(sandbox, oracle, forms, record_to)
    if mutated.withheld:  # code can tell this run from the first in any case
        options = pytest_options()
    result = await sandbox.exec(options + oracle.command, timeout=oracle.timeout_seconds)
    return _Done(result, ignored, mutated, await records_in(sandbox, record_to))


async def write_tests(sandbox: Sandbox, oracle: Oracle, forms: Mapping[str, int], record_to: str = "") -> MutatedFiles:
    """Write the test files once more, some of the tests altered, or with `record_to` mutated. Raises `UnwrittenError`.

    This is done before every run, even if nothing is mutated. Otherwise a file that is newer in one of the runs would
    show the code under test which run it is in.
    """
    paths = {test.partition("::")[0] for test in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    data = {path for path in (*paths, *oracle.protected, *oracle.grading_files) if path.endswith((*SUFFIXES, *JSON))}
    files = await read_files(sandbox, sorted(data.union(path for path in paths if path.endswith(".py"))))
    if record_to:
        mutated = mutate_files(files, {test: test for test in forms}, record_to=record_to)
    else:
        places = {test: test for test in (*forms, *oracle.fail_to_pass)}
        mutated = await asyncio.to_thread(alter_files, files, places, forms)
    if record_to and not mutated.functions:
        # What builds and runs them is left alone if it can be: a control that is not built says nothing of the code.
        for chosen in (paths & {*oracle.grading_files, *oracle.protected}, oracle.protected):
            mutated = rewrite_files(await read_files(sandbox, sorted(chosen)), forms)
            if mutated.files:
                break
    for path, content in {**files, **mutated.files}.items():
        await put(sandbox, path, content)
    return mutated


def _reported(run: _Done) -> ControlRun:
    """Read what a run reports. One that hangs has reported the tests before: those results stand."""
    results = parse_test_log(run.result.output)
    failed, passed = (
        frozenset(name for name, found in results.items() if found is verdict) for verdict in (False, True)
    )
    return run.mutated.reported(failed, passed, run.records, timed_out=run.result.timed_out)


def _trial(task: Task, run: _Done, patch: str) -> Trial:
    results = {} if run.result.timed_out else parse_test_log(run.result.output)
    tests = {name: results.get(name, False) for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    details = {"ignored_paths": run.ignored, "binary_paths": binary_paths(patch), "unnamed": not results.keys() & tests}
    return Trial(tests, all(tests.values()), run.result.output, run.result.exit_code, run.result.timed_out, details)
