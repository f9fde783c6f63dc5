"""Grade a change that is to break a test (`data_sources.factory.writing`): run the tests, and count.

The code that reports is the policy's. So the tests that its log reports as passed are put to the negative control, with
the unpatched code as what is right: a log of passes that did not happen is not believed.

Not covered: a failure that did not happen, since breaking the code is as easy; a fault that shows by chance; and code
that reads the tests, to forge only those that are not mutated. `slime-swe make-tasks --written` proves each change
several times before it is a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slime_swe import syntax
from slime_swe.data_sources.factory.writing import WrittenOracle
from slime_swe.data_sources.task import Task, TestsOracle
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.patches import changed_lines
from slime_swe.rewards.grade import GradingSettings, Trial
from slime_swe.rewards.guard import graded_files
from slime_swe.rewards.test_log import Runs, controlled
from slime_swe.sandbox.base import Sandboxes

_LONGEST = 200_000  # characters of a changed file: it is parsed here


@dataclass(frozen=True)
class _Runs(Runs):
    """The runs of a change that is to break some of the tests."""

    async def first(self) -> Trial:
        """Make the first run, solved where a test or more is reported as failed, and half of them as passed."""
        trial, tests = await super().first(), self.task.oracle.pass_to_pass
        results = {} if trial.timed_out else parse_test_log(trial.log)
        failed, passed = (sum(results.get(name) is verdict for name in tests) for verdict in (False, True))
        solved = failed > 0 and 2 * passed >= len(tests)
        shares = {"tests_failed": failed / len(tests), "tests_passed": passed / len(tests)}
        return replace(trial, solved=solved, quality=float(solved), components=shares)


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Grade a change by the tests that it breaks. Raises `PatchError`, `GraderError`."""
    oracle = task.oracle
    assert isinstance(oracle, WrittenOracle), oracle.kind
    files, ignored = await graded_files(task, patch)
    if reason := await asyncio.to_thread(_refused, task, patch, files, oracle.most_lines):
        trial = Trial({}, False, reason, details={"ignored_paths": ignored}, quality=0.0)
    else:
        trial = await controlled(_Runs(_with_passing_tests(task, oracle), patch, sandboxes), settings)
    return replace(trial, tests=dict.fromkeys(oracle.fail_to_pass, trial.solved))


def _with_passing_tests(task: Task, oracle: WrittenOracle) -> Task:
    """Return the task whose tests pass without a change."""
    passing = TestsOracle(
        (),
        pass_to_pass=oracle.tests,
        protected=oracle.protected,
        command=oracle.command,
        timeout_seconds=oracle.timeout_seconds,
    )
    return replace(task, oracle=passing)


def _refused(task: Task, patch: str, files: Mapping[str, str | bytes], most_lines: int) -> str:
    """Say why the change is refused before anything runs; empty where it is not."""
    if (lines := sum(1 for _ in changed_lines(patch))) > most_lines:
        return f"{lines} lines are changed, and {most_lines} may be"
    for path, content in files.items():
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        changed = path.endswith(".py") and text != task.workspace.files.get(path)
        if changed and len(text) <= _LONGEST and not _compiles(text):
            return f"{path} does not compile"
    return ""


def _compiles(text: str) -> bool:
    try:
        syntax.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
