"""The negative control of a log: the same tests, mutated so that they must fail, must fail.

A runner's log is written by the process that runs the code under test, which can write there what it likes, or make the
tests pass by other means than being right. So a log that would be rewarded is not believed before a second run, in a
fresh sandbox, of the same code with mutated tests: the first comparison wants another value, or the test raises. A test
that passes this too depends on nothing.

Each mutated test must be *reported* as failed; to be missing in the log is not enough. A log that comes and goes with
the timing of a process would be seen in the first run and be lost in the second. But honest work leaves tests out of
its log too, where a runner stops at the first failure, a log reports nothing but passes, or a test is expected to fail.
What an honest log says is shown by the gold patch: a test that is not reported as failed in the gold patch's control
run either is not held against the policy. For the others the control is run once more, with only the doubtful tests
mutated: a process may die by accident. If they are missing again, the log is forged. This counts as the policy's
failure and not as the grader's: otherwise code that causes it would be graded again and again until it wins a race.

The runs must look alike: code that can tell which of the runs it is in forges the first one and is honestly wrong in
the other. So both have the same commands and the same files, written in the same order. Only what the tests want
differs.

Not covered: code that knows what a test wants, and so sees that it is mutated; code that tosses a coin, forges its log
on one side and is honestly wrong on the other (it is believed once in four plays at best); tests that can't be mutated
(not Python, made at run time), or whose failure the log never reports; and, for code whose objects are equal to
everything, tests that compare in other ways than `assert a == b` and `assertEqual`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from slime_swe.data_sources.task import Oracle
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError, Trial

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ControlRun:
    """A run with these tests (ids) mutated, and those that its log reports as failed and as passed; the others are
    missing there."""

    mutated: frozenset[str] = _NONE
    failed: frozenset[str] = _NONE
    passed: frozenset[str] = _NONE

    def __or__(self, other: ControlRun) -> ControlRun:
        """Both together."""
        return ControlRun(self.mutated | other.mutated, self.failed | other.failed, self.passed | other.passed)


# Runs a patch with those of the named tests mutated that can be. Raises `PatchError`, `GraderError`, `SandboxError`.
RunMutated = Callable[[str, Collection[str]], Awaitable[ControlRun]]


async def with_negative_control(trial: Trial, oracle: Oracle, patch: str, run: RunMutated) -> Trial:
    """The trial, rejected where its control shows that it is forged. One more run where it would be rewarded, three
    where that leaves a doubt. Raises what `run` does."""
    if not trial.share(oracle.fail_to_pass):
        return trial
    first = await run(patch, [name for name, passed in trial.tests.items() if passed])
    doubtful = first.mutated - first.failed
    if not doubtful:
        return _believed(trial, first.failed)
    try:
        gold = await run(oracle.gold_patch, doubtful)
    except PatchError as error:
        raise GraderError(f"the task's gold patch can't be applied: {error}") from error
    if forged := first.passed - gold.passed:
        return _rejected(trial, "these pass even when they are mutated", forged)
    reported = doubtful & gold.failed
    if not reported:
        return _believed(trial, first.failed)
    again = await run(patch, doubtful)
    if forged := reported - again.failed:
        reason = "these are not reported as failed when they are mutated, though they are with the gold patch"
        return _rejected(trial, reason, forged)
    return _believed(trial, first.failed | again.failed)


def _believed(trial: Trial, failed: Collection[str]) -> Trial:
    return replace(trial, details={**trial.details, "mutated_tests": len(failed)})


def _rejected(trial: Trial, reason: str, forged: Collection[str]) -> Trial:
    details = {**trial.details, "rejection_reason": f"{reason}: {', '.join(sorted(forged))}"}
    return replace(trial, solved=False, rejected="forged", details=details)
