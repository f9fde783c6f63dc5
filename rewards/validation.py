"""A task proves itself: its gold patch solves it, no patch does not, and again so each time.

A test whose outcome changes between runs of the same code is flaky. It would reward luck, so it is quarantined: a task
may do without it, unless it was the last of the task's FAIL_TO_PASS.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from data_sources.task import Oracle, Task
from rewards.grade import SANDBOXED, HarnessSettings, try_patch
from rewards.score import GraderError
from rewards.verdict import Sandboxes, Trial
from rollout.patch import PatchError

SHOWN_TESTS = 5


class Status(Enum):
    """What validation says of a task."""

    SOUND = "sound"
    FLAKY = "flaky"  # sound but for some tests
    UNSOUND = "unsound"
    BROKEN = "broken"  # the grader failed: nothing is known of the task


@dataclass(frozen=True)
class Finding:
    """flaky: the tests whose outcome changed. detail: what is wrong, for people. seconds: of all runs."""

    task: str
    status: Status
    detail: str = ""
    flaky: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class _Runs:
    """The trials of one patch, a failure to apply it among them."""

    trials: list[Trial] = field(default_factory=list)
    unappliable: str = ""


async def validate(
    task: Task,
    sandboxes: Sandboxes,
    runs: int = 3,
    harness: HarnessSettings = SANDBOXED,
) -> Finding:
    """Run the oracle `runs` times on the gold patch and as often on none. What the grader fails at is `BROKEN`."""
    started = time.monotonic()
    try:
        gold = await _run(task, task.oracle.gold_patch, runs, sandboxes, harness)
        empty = await _run(task, "", runs, sandboxes, harness)
        finding = judge_runs(task, gold.trials, empty.trials, gold.unappliable)
    except GraderError as error:
        finding = Finding(task.id, Status.BROKEN, str(error))
    return replace(finding, seconds=round(time.monotonic() - started, 3))


async def _run(task: Task, patch: str, runs: int, sandboxes: Sandboxes, harness: HarnessSettings) -> _Runs:
    done = _Runs()
    for _ in range(runs):
        try:
            done.trials.append(await try_patch(task, patch, sandboxes, harness))
        except PatchError as error:
            done.unappliable = str(error)
            break
    return done


def judge_runs(task: Task, gold: Sequence[Trial], empty: Sequence[Trial], unappliable: str = "") -> Finding:
    """What the runs with the gold patch and those without one say."""
    if not task.oracle.gold_patch.strip():
        return Finding(task.id, Status.UNSOUND, "it has no gold patch")
    if unappliable:
        return Finding(task.id, Status.UNSOUND, f"the gold patch can't be applied: {unappliable}")
    flaky = tuple(name for name in _expected(task.oracle) if _changes(name, gold) or _changes(name, empty))
    if wrong := _wrong(task.oracle, gold[0], empty[0], flaky):
        return Finding(task.id, Status.UNSOUND, wrong, flaky)
    if flaky:
        return Finding(task.id, Status.FLAKY, f"outcomes change: {_some(flaky)}", flaky)
    refused = next((trial for trial in gold if not trial.solved or trial.refuted), None)
    if refused is not None:
        why = refused.details.get("disbelief", "the oracle wants more")
        return Finding(task.id, Status.UNSOUND, f"every test passes with the gold patch, which is not accepted: {why}")
    return Finding(task.id, Status.SOUND)


def without_flaky(task: Task, flaky: Collection[str]) -> Task | None:
    """The task without these tests; None where no FAIL_TO_PASS is left."""
    fail_to_pass = tuple(name for name in task.oracle.fail_to_pass if name not in flaky)
    pass_to_pass = tuple(name for name in task.oracle.pass_to_pass if name not in flaky)
    if not fail_to_pass:
        return None
    return replace(task, oracle=replace(task.oracle, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass))


def _expected(oracle: Oracle) -> tuple[str, ...]:
    return (*oracle.fail_to_pass, *oracle.pass_to_pass)


def _changes(name: str, trials: Sequence[Trial]) -> bool:
    return len({trial.tests[name] for trial in trials}) > 1


def _wrong(oracle: Oracle, gold: Trial, empty: Trial, flaky: Collection[str]) -> str:
    """What the tests that are not flaky say against the task; empty where nothing."""
    steady = [name for name in _expected(oracle) if name not in flaky]
    found = {
        "fail with the gold patch": [name for name in steady if not gold.tests[name]],
        "are FAIL_TO_PASS but pass without a patch": [
            name for name in steady if name in oracle.fail_to_pass and empty.tests[name]
        ],
        "are PASS_TO_PASS but fail without a patch": [
            name for name in steady if name in oracle.pass_to_pass and not empty.tests[name]
        ],
    }
    told = [f"{len(names)} of {len(steady)} tests {what}: {_some(names)}" for what, names in found.items() if names]
    ways = {"with the gold patch": gold, "without a patch": empty}
    late = [f"{way} the time limit is reached" for way, trial in ways.items() if trial.timed_out]
    return "; ".join(late + told)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_TESTS} more" if len(names) > SHOWN_TESTS else ""
    return ", ".join(names[:SHOWN_TESTS]) + more
