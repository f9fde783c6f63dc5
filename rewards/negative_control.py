"""The negative control of a log: with its tests mutated so that they must fail, they must be reported as failed.

A runner's log is written by the process that runs the code under test. That code can write there what it likes, or make
the tests pass by other means than being right. So a log that would be rewarded is believed only after a second run of
the same code, in a fresh sandbox, with mutated tests (`rewards.mutation`). A test that still passes does not depend on
the code.

Each mutated test must be *reported* as failed. A missing test is not enough: a log that comes and goes with the timing
of a process could be seen in the first run and be lost in the second. But the log of honest work may leave tests out
too, if a runner stops at the first failure, a log reports passes alone, or a test is expected to fail. The gold patch
shows which: a test that its control run does not report as failed either is not held against the policy. For the other
doubtful tests the control is run once more, with only these mutated, since a process may die by accident. If they are
missing again, the log is forged. This counts as the policy's failure and not as the grader's. Otherwise code that
causes it would be graded again and again until it wins the race.

The runs must look alike. Code that can tell which run it is in would forge the first one and fail honestly in the
second. So both have the same commands and the same files, written in the same order. Only the values that the tests
expect differ.

Not covered:

- Code that knows what a test expects, and so sees that it is mutated.
- Code that decides at random whether to forge its log or to fail honestly. It is believed at most once in four
  gradings.
- Tests that can't be mutated (not Python, made at run time), or whose failure the log never reports.
- Tests that compare in other ways than `assert a == b` and `assertEqual`, for objects that are equal to everything.
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
    """A run with these tests (ids) mutated, and those that its log reports as failed and as passed. The others are
    missing in the log.
    """

    mutated: frozenset[str] = _NONE
    failed: frozenset[str] = _NONE
    passed: frozenset[str] = _NONE

    def __or__(self, other: ControlRun) -> ControlRun:
        """Both together."""
        return ControlRun(self.mutated | other.mutated, self.failed | other.failed, self.passed | other.passed)


# Runs a patch with those of the named tests mutated that can be. Raises `PatchError`, `GraderError`, `SandboxError`.
RunMutated = Callable[[str, Collection[str]], Awaitable[ControlRun]]


async def with_negative_control(trial: Trial, oracle: Oracle, patch: str, run: RunMutated) -> Trial:
    """The trial, rejected if its control shows that it is forged.

    Costs one more run if the trial would be rewarded, three if the first control leaves a doubt. Raises what `run`
    does.
    """
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
