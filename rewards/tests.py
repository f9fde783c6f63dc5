"""Grade a patch by the task's own tests, in a fresh sandbox that the agent never touched.

The patch is applied here, to the task's pristine files, and never by a program in the sandbox. What decides the verdict
is put back as the task has it: see `graded_files`. Code under test can make its process print what it likes: tests that
are calls with known answers are judged by the values that they return (`rewards.calls`), and a log that would earn
something is believed only where falsified tests fail (`rewards.control`).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from data_sources.arguments import ArgumentError
from data_sources.task import Task, TestOracle
from data_sources.test_log import parse_test_log
from rewards.calls import MIN_HELD_OUT, Calls, calls_of
from rewards.control import Control, controlled, lay_tests
from rewards.guard import Guard, folders
from rewards.limits import image_limits
from rewards.score import GraderError
from rewards.verdict import Sandboxes, Trial
from rollout.patch import PatchError, apply_patch, binary_paths
from rollout.patch_reader import read_patch
from rollout.sandbox.base import ExecResult, Limits, Sandbox, SandboxError

LIMITS = Limits(output_bytes=1 << 20)  # more than an agent sees: a test's line must not be lost in a long log
_LIST_FILES = "find . -name .git -prune -o -type f -printf '%P\\0'"

Files = Mapping[str, str | bytes]


@dataclass(frozen=True)
class _Run:
    """One run of the oracle's command. ignored: where the patch counts for nothing. falsified: tests made to fail."""

    result: ExecResult
    ignored: list[str]
    falsified: frozenset[str] = frozenset()


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes) -> Trial:
    """The tests' results with the patch; an empty one changes nothing. Raises `PatchError`, `GraderError`."""
    oracle = oracle_of(task)
    calls = None if task.workspace.image else calls_of(oracle, task.workspace.files)
    try:
        if calls is not None:
            return await _by_calls(task, oracle, calls, patch, sandboxes)
        attempt = _in_image if task.workspace.image else _in_files
        trial = _by_log(oracle, await attempt(task, oracle, patch, sandboxes), patch)

        async def run_falsified(text: str, tests: Collection[str]) -> Control:
            return _control(await attempt(task, oracle, text, sandboxes, falsify=tests))

        return await controlled(trial, oracle, patch, run_falsified)
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


def oracle_of(task: Task) -> TestOracle:
    """Raises `ArgumentError` where the task is graded in another way."""
    if not isinstance(task.oracle, TestOracle):
        raise ArgumentError(f"task {task.id!r} is graded by a {type(task.oracle).__name__}, not by tests in its files")
    return task.oracle


async def _by_calls(task: Task, oracle: TestOracle, calls: Calls, patch: str, sandboxes: Sandboxes) -> Trial:
    files, ignored = graded_files(task, patch)
    async with sandboxes.open(files | calls.grading_files(), LIMITS) as sandbox:
        result = await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds)
    return _by_values(oracle, calls, _Run(result, ignored), patch)


async def _in_files(
    task: Task, oracle: TestOracle, patch: str, sandboxes: Sandboxes, *, falsify: Collection[str] = ()
) -> _Run:
    files, ignored = graded_files(task, patch)
    async with sandboxes.open(files, LIMITS) as sandbox:
        return await _run(sandbox, oracle, ignored, falsify)


async def _in_image(
    task: Task, oracle: TestOracle, patch: str, sandboxes: Sandboxes, *, falsify: Collection[str] = ()
) -> _Run:
    limits = image_limits(oracle.timeout_seconds)
    async with sandboxes.open(task.workspace.files, limits, task.workspace.image) as sandbox:
        names = await _names(sandbox)
        pristine: Files = {**await _named_files(sandbox, patch, names), **task.workspace.files}
        files, ignored = graded_files(task, patch, pristine, names)
        await _lay(sandbox, pristine, files)
        return await _run(sandbox, oracle, ignored, falsify)


async def _run(sandbox: Sandbox, oracle: TestOracle, ignored: list[str], falsify: Collection[str]) -> _Run:
    falsified = await lay_tests(sandbox, (*oracle.fail_to_pass, *oracle.pass_to_pass), falsify)
    if falsify and not falsified:
        return _Run(ExecResult(None, "", 0.0), ignored)
    return _Run(await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds), ignored, falsified)


async def _names(sandbox: Sandbox) -> frozenset[str]:
    """Every file of the repository."""
    result = await sandbox.exec(_LIST_FILES)
    if result.exit_code != 0 or result.truncated:
        raise GraderError(f"the image's files can't be listed: {result.output[-500:]!r}")
    return frozenset(filter(None, result.output.split("\0")))


async def _named_files(sandbox: Sandbox, patch: str, names: Collection[str]) -> dict[str, bytes]:
    """What the patch names, of what there is."""
    named = {change.path for change in read_patch(patch)} & set(names)
    try:
        return {path: await sandbox.read_file(path) for path in sorted(named)}
    except OSError as error:
        raise PatchError(f"a file that the patch names can't be read: {error}") from error


async def _lay(sandbox: Sandbox, before: Files, after: Files) -> None:
    """Make of the files `before`, which the sandbox has, those `after`."""
    deleted = [path for path in before if path not in after]
    if deleted:
        await sandbox.exec(f"rm -f -- {shlex.join(deleted)}")
    try:
        for path, content in after.items():
            if before.get(path) != content:
                await sandbox.write_file(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise PatchError(f"a file of the patch can't be written: {error}") from error


def _by_log(oracle: TestOracle, run: _Run, patch: str) -> Trial:
    results = {} if run.result.timed_out else parse_test_log(run.result.output)
    tests = {name: results.get(name, False) for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    return _trial(tests, run, patch, run.result.output)


def _control(run: _Run) -> Control:
    """A run that hangs has told of the tests before: what it tells of them stands."""
    results = parse_test_log(run.result.output)
    failed, passed = ({name for name in run.falsified if results.get(name) is verdict} for verdict in (False, True))
    return Control(run.falsified, frozenset(failed), frozenset(passed))


def _by_values(oracle: TestOracle, calls: Calls, run: _Run, patch: str) -> Trial:
    """A run that hangs in a held-out call has ended its tests before: they stand."""
    results, held_out = calls.read(run.result.output)
    tests = {name: results[name] for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    if run.result.timed_out and not all(tests.values()):
        tests = dict.fromkeys(tests, False)
    verdicts = "".join(f"{'PASSED' if passed else 'FAILED'} {name}\n" for name, passed in tests.items())
    trial = _trial(tests, run, patch, f"{run.result.output}\n{verdicts}")
    if not trial.solved:
        return trial
    trial = replace(trial, timed_out=False)
    if held_out >= MIN_HELD_OUT:
        return trial
    disbelief = f"all that the tests show is right, and {held_out:.0%} of what they don't show".replace("%", " %")
    return replace(trial, solved=False, refuted="special_cased", details={**trial.details, "disbelief": disbelief})


def _trial(tests: dict[str, bool], run: _Run, patch: str, log: str) -> Trial:
    details = {"ignored_paths": run.ignored, "binary_paths": binary_paths(patch)}
    return Trial(tests, all(tests.values()), log, run.result.exit_code, run.result.timed_out, details)


def graded_files(
    task: Task, patch: str, pristine: Files | None = None, names: Collection[str] | None = None
) -> tuple[dict[str, str | bytes], list[str]]:
    """The pristine files with the patch applied, and the paths at which the patch counts for nothing.

    Pristine are the task's own files, and all names are theirs, where nothing else is given. See `rewards.guard` for
    where a patch counts for nothing; so it does where it is in the way of a file that is put back. Raises `PatchError`.
    """
    pristine = task.workspace.files if pristine is None else pristine
    files: dict[str, str | bytes] = dict(apply_patch(pristine, patch))
    guarded = Guard(pristine if names is None else names, task.oracle.protected)
    ignored = [path for path in {**pristine, **files} if _encoded(pristine.get(path)) != files.get(path)]
    ignored = sorted(path for path in ignored if guarded(path))
    restored = {path: pristine[path] for path in ignored if path in pristine}
    undone = {*ignored, *_in_the_way(files, restored)}
    return {path: content for path, content in files.items() if path not in undone} | restored, sorted(undone)


def _in_the_way(files: Iterable[str], restored: Collection[str]) -> list[str]:
    """The files that a restored one would have to be a folder of, or a file in."""
    above = {parent for path in restored for parent in folders(path)}
    return [path for path in files if path in above or not folders(path).isdisjoint(restored)]


def _encoded(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
