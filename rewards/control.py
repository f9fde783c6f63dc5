"""The control of a log: the same tests, made to fail, must fail.

A runner's log is written by the process that runs the code under test, which can write there what it likes, or make the
tests pass by other means than being right. So a log that earns something is not believed before a second run, in a
fresh sandbox, of the same code with falsified tests: the first comparison wants another value, or the test raises.
A test that passes this too depends on nothing.

Each falsified test must be *told* to fail. Silence is no failure: a log that comes and goes with the timing of a
process would be seen in the first run and be lost in the second. But honest work is silent too where a runner stops at
the first failure, a log tells of nothing but passes, or a test is expected to fail. What the runner says where nothing
is forged is shown by the gold patch: of a test whose falsified run tells no failure with the gold patch either, nothing
is asked. Of any other the control is run once more, with only the doubtful tests falsified, before it is taken for
forged: a process may die by an accident. A second silence is the policy's failure and not the grader's, or who brings
it about would be tried again until a race is won.

Nothing but what the tests want tells the code under test which of the runs it is in, or it would forge the one and be
honestly wrong in the other: the commands, the files and the order in which they are written are the same.

What it does not cover: code that knows what a test wants, and so sees that it is falsified; code that forges by the
toss of a coin and is honestly wrong otherwise (it is believed once in four at best); tests that can't be falsified (not
Python, made at run time), or whose failure the log never tells; and, for code whose objects are equal to everything,
tests that compare in other ways than `assert a == b` and `assertEqual`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from data_sources.task import Oracle
from rewards.falsify import falsify, tests_in
from rewards.score import GraderError
from rewards.verdict import Trial
from rollout.patch import PatchError
from rollout.sandbox.base import Sandbox


@dataclass(frozen=True)
class Control:
    """A run with these tests (ids) falsified, and what its log tells of them: of one in neither set, nothing."""

    falsified: frozenset[str]
    failed: frozenset[str]
    passed: frozenset[str]


# Runs a patch with tests falsified, of those that are named. Raises `PatchError`, `GraderError`, `SandboxError`.
RunFalsified = Callable[[str, Collection[str]], Awaitable[Control]]


async def controlled(trial: Trial, oracle: Oracle, patch: str, run: RunFalsified) -> Trial:
    """What a trial earns in the light of its control: one more run where it earns something, three where that is in
    doubt. Raises what `run` does."""
    if not trial.share(oracle.fail_to_pass):
        return trial
    first = await run(patch, [name for name, passed in trial.tests.items() if passed])
    doubtful = first.falsified - first.failed
    if not doubtful:
        return _believed(trial, first.failed)
    gold = await _of_gold(oracle, run, doubtful)
    if forged := first.passed - gold.passed:
        return _refuted(trial, f"these pass even when they are falsified: {', '.join(sorted(forged))}")
    told = doubtful & gold.failed
    if not told:
        return _believed(trial, first.failed)
    again = await run(patch, doubtful)
    if forged := told - again.failed:
        what = "of these no failure is told when they are falsified, though there is one with the gold patch"
        return _refuted(trial, f"{what}: {', '.join(sorted(forged))}")
    return _believed(trial, first.failed | again.failed)


async def _of_gold(oracle: Oracle, run: RunFalsified, tests: Collection[str]) -> Control:
    try:
        return await run(oracle.gold_patch, tests)
    except PatchError as error:
        raise GraderError(f"the task's gold patch can't be applied: {error}") from error


def _believed(trial: Trial, failed: Collection[str]) -> Trial:
    return replace(trial, details={**trial.details, "falsified_tests": len(failed)})


def _refuted(trial: Trial, disbelief: str) -> Trial:
    return replace(trial, solved=False, refuted="forged", details={**trial.details, "disbelief": disbelief})


async def lay_tests(sandbox: Sandbox, tests: Collection[str], falsified: Collection[str]) -> frozenset[str]:
    """Write the files of these tests (ids) once more, some of the tests falsified; those that could be. Raises
    `GraderError` where a file can't be written.

    So it is done before every run, whether anything is to be falsified or not: a file that is newer in one of them than
    in the other would tell the code under test which of the two it is in.
    """
    done: set[str] = set()
    for path in sorted({test.partition("::")[0] for test in tests}):
        if not path.endswith(".py"):
            continue
        try:
            source = await sandbox.read_file(path)
        except OSError:
            continue
        text, found = falsify(source, tests_in(path, falsified), random.Random())
        try:
            await sandbox.write_file(path, text)
        except OSError as error:
            raise GraderError(f"the test file {path} can't be written: {error}") from error
        done |= found
    return frozenset(done)
