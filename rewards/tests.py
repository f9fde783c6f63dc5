"""Grade a patch by the task's own tests, in a fresh sandbox that the agent never touched.

The patch is applied here, to the task's pristine files, and never by a program in the sandbox. What decides the verdict
is put back as the task has it: see `graded_files`. The tests still run in one process with the code under test, so a
patch that forges the runner's log is not detected here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol, get_args

from data_sources.arguments import ArgumentError
from data_sources.task import Image, Task, TestOracle
from data_sources.test_log import parse_test_log
from rewards.score import GraderError, Score
from rollout.patch import MAX_PATCH_BYTES, OVERSIZED, PatchError, apply_patch, binary_paths
from rollout.sandbox.base import ExecResult, Limits, Sandbox, SandboxError

Mode = Literal["plus_minus", "binary", "fraction"]
MODES: tuple[Mode, ...] = get_args(Mode)

LOG_TAIL_CHARACTERS = 4_000
LIMITS = Limits(output_bytes=1 << 20)  # more than an agent sees: a test's line must not be lost in a long log
# Files that Python or pytest load without being asked, from wherever they are found.
_AUTO_LOADED = frozenset(
    {"conftest.py", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg", "pyproject.toml"}
    | {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
)


class OracleError(ValueError):
    """A task does not prove itself: its gold patch fails, or its tests don't tell the broken code from the fixed."""


class Sandboxes(Protocol):
    """What opens fresh sandboxes, such as `rollout.sandbox.SandboxPool`."""

    def open(
        self, files: Mapping[str, str | bytes], limits: Limits | None = None, image: Image | None = None
    ) -> AbstractAsyncContextManager[Sandbox]: ...


@dataclass(frozen=True)
class Report:
    """One run of the oracle's command. `tests`: each expected test → whether it passed; one that did not run failed."""

    tests: dict[str, bool]
    result: ExecResult

    def share(self, names: tuple[str, ...]) -> float:
        """The share of these tests that passed; 1 where there are none."""
        return sum(self.tests[name] for name in names) / len(names) if names else 1.0


async def grade(task: Task, patch: str, sandboxes: Sandboxes, mode: Mode = "plus_minus") -> Score:
    """The score of a patch. Raises `GraderError` where the sandbox failed, `ArgumentError` for an unknown mode.

    Values where the patch solves the task, and where it does not: `plus_minus` +1 and -1, `binary` 1 and 0; `fraction`
    is the share of all expected tests that pass, but 0 unless a FAIL_TO_PASS test does, so that doing nothing earns 0.
    `evidence["outcome"]` is one of solved, failed, timeout, empty_patch, oversized_patch, unappliable_patch.
    """
    if mode not in MODES:
        raise ArgumentError(f"unknown reward mode {mode!r}; available: {', '.join(MODES)}")
    started = time.monotonic()
    size = len(patch.encode("utf-8", "replace"))
    evidence: dict[str, Any] = {"patch_bytes": size}
    if not patch.strip():
        return _refused(mode, "empty_patch", "the patch changes nothing", evidence)
    if size > MAX_PATCH_BYTES or patch == OVERSIZED:
        return _refused(mode, "oversized_patch", f"the patch has more than {MAX_PATCH_BYTES} bytes", evidence)
    try:
        files, ignored = graded_files(task, patch)
        evidence |= {"ignored_paths": ignored, "binary_paths": binary_paths(patch)}
    except PatchError as error:
        return _refused(mode, "unappliable_patch", str(error), evidence)
    report = await run_oracle(oracle_of(task), files, sandboxes)
    return _scored(mode, oracle_of(task), report, evidence | {"seconds": time.monotonic() - started})


async def validate(task: Task, sandboxes: Sandboxes) -> None:
    """Prove the task: its tests pass with the gold patch, and FAIL_TO_PASS fail (and PASS_TO_PASS pass) without.

    Raises `OracleError` saying which did not; `GraderError` where the sandbox failed.
    """
    score = await grade(task, task.oracle.gold_patch, sandboxes)
    if not score.solved:
        failed = [name for name, passed in score.evidence.get("tests", {}).items() if not passed]
        outcome, log = score.evidence["outcome"], score.evidence.get("log", score.evidence.get("detail"))
        raise OracleError(f"task {task.id!r}: the gold patch ends in {outcome}; tests that fail: {failed}; {log}")
    report = await run_oracle(oracle_of(task), task.workspace.files, sandboxes)
    passing = [name for name in task.oracle.fail_to_pass if report.tests[name]]
    failing = [name for name in task.oracle.pass_to_pass if not report.tests[name]]
    if passing or failing:
        raise OracleError(
            f"task {task.id!r}: without a patch, FAIL_TO_PASS tests {passing} pass, PASS_TO_PASS tests {failing} fail"
        )


def oracle_of(task: Task) -> TestOracle:
    """Raises `ArgumentError` where the task is graded in another way."""
    if not isinstance(task.oracle, TestOracle):
        raise ArgumentError(f"task {task.id!r} is graded by a {type(task.oracle).__name__}, not by tests in its files")
    return task.oracle


async def run_oracle(oracle: TestOracle, files: Mapping[str, str | bytes], sandboxes: Sandboxes) -> Report:
    """Run the tests on these files in a fresh sandbox. Raises `GraderError`."""
    try:
        async with sandboxes.open(files, LIMITS) as sandbox:
            result = await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds)
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error
    results = {} if result.timed_out else parse_test_log(result.output)
    return Report({name: results.get(name, False) for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}, result)


def graded_files(task: Task, patch: str) -> tuple[dict[str, str | bytes], list[str]]:
    """The task's files with the patch applied, and the paths at which the patch counts for nothing.

    Those are: the oracle's protected files; every file that is not the task's in a folder (but the root) that holds a
    protected one; what Python or pytest load by themselves (`conftest.py`, `sitecustomize.py`, …); a new module that
    would be imported in place of a protected file or of the standard library; and what is in the way of a file that is
    put back. Raises `PatchError`.
    """
    pristine = task.workspace.files
    files: dict[str, str | bytes] = dict(apply_patch(pristine, patch))
    guarded = _Guarded(task)
    ignored = [path for path in {**pristine, **files} if _encoded(pristine.get(path)) != files.get(path)]
    ignored = sorted(path for path in ignored if guarded(path))
    restored = {path: pristine[path] for path in ignored if path in pristine}
    undone = {*ignored, *_in_the_way(files, restored)}
    return {path: content for path, content in files.items() if path not in undone} | restored, sorted(undone)


def _in_the_way(files: Iterable[str], restored: Collection[str]) -> list[str]:
    """The files that a restored one would have to be a folder of, or a file in."""
    above = {parent for path in restored for parent in _folders(path)}
    return [path for path in files if path in above or not _folders(path).isdisjoint(restored)]


class _Guarded:
    """Whether a change to this path is undone before grading."""

    def __init__(self, task: Task) -> None:
        self._known = task.workspace.files
        self._protected = frozenset(task.oracle.protected)
        folders = {str(PurePosixPath(path).parent) for path in self._protected}
        self._folders = tuple(f"{folder}/" for folder in folders if folder != ".")
        self._modules = {_module(path) for path in self._protected}
        self._roots = _import_roots(self._known)

    def __call__(self, path: str) -> bool:
        if path in self._protected or PurePosixPath(path).name in _AUTO_LOADED:
            return True
        if path in self._known:
            return False
        return path.startswith(self._folders) or any(map(self._shadows, _as_imported(path, self._roots)))

    def _shadows(self, path: str) -> bool:
        """A new file below a folder of `sys.path`: `queue.py` or `queue/…` comes before the standard library's."""
        names = {path.partition("/")[0].partition(".")[0], _module(path)}
        return bool(names & self._modules) or not names.isdisjoint(sys.stdlib_module_names)


def _import_roots(files: Mapping[str, str]) -> frozenset[str]:
    """The folders that a test runner may have on `sys.path`: those that are in no package, and `src` in any case."""
    folders = {folder for path in files for folder in _folders(path)}
    packages = {folder for folder in folders if f"{folder}/__init__.py" in files}
    outside = {folder for folder in folders if packages.isdisjoint({folder, *_folders(folder)})}
    return frozenset({"src", *outside})


def _as_imported(path: str, roots: Collection[str]) -> list[str]:
    """The path from the repository's root, and from each of these folders that it is in."""
    return [path, *(path[len(folder) + 1 :] for folder in _folders(path) if folder in roots)]


def _folders(path: str) -> set[str]:
    """The folders that the path is in, but for the repository's own."""
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _module(path: str) -> str:
    """What the file is imported as: `pkg/test_a.py` and `pkg/test_a/__init__.py` are both `pkg/test_a`."""
    parent, name = PurePosixPath(path).parent, PurePosixPath(path).name.partition(".")[0]
    return str(parent) if name == "__init__" else str(parent / name)


def _encoded(content: str | None) -> bytes | None:
    return None if content is None else content.encode()


def _refused(mode: Mode, outcome: str, detail: str, evidence: dict[str, Any]) -> Score:
    components = {"fail_to_pass": 0.0, "pass_to_pass": 0.0}
    return Score(_value(mode, False, 0.0), False, components, {"outcome": outcome, "detail": detail, **evidence})


def _scored(mode: Mode, oracle: TestOracle, report: Report, evidence: dict[str, Any]) -> Score:
    solved = all(report.tests.values())
    components = {"fail_to_pass": report.share(oracle.fail_to_pass), "pass_to_pass": report.share(oracle.pass_to_pass)}
    share = report.share((*oracle.fail_to_pass, *oracle.pass_to_pass)) if components["fail_to_pass"] else 0.0
    outcome = "timeout" if report.result.timed_out else "solved" if solved else "failed"
    log = {"log": report.result.output[-LOG_TAIL_CHARACTERS:], "exit_code": report.result.exit_code}
    return Score(
        _value(mode, solved, share), solved, components, {"outcome": outcome, "tests": report.tests, **log, **evidence}
    )


def _value(mode: Mode, solved: bool, share: float) -> float:
    if mode == "fraction":
        return share
    return 1.0 if solved else -1.0 if mode == "plus_minus" else 0.0
