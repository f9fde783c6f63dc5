"""A task proves itself: its gold patch solves it, no patch does not, and both repeatedly.

A test whose outcome changes between runs of the same code is flaky and would reward luck, so it is removed from its
task. A task without any FAIL_TO_PASS left is unusable.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe import files
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import DEFAULTS, GraderError, GradingSettings, Trial, try_patch
from slime_swe.sandbox.base import Sandboxes
from slime_swe.sandbox.pool import SandboxPool

SHOWN_TESTS = 5
LOG_CHARACTERS = 2_000


class Status(StrEnum):
    """The verdict of validation on a task."""

    SOUND = "sound"
    FLAKY = "flaky"  # sound but for some tests
    UNSOUND = "unsound"
    BROKEN = "broken"  # the grader failed: nothing is known of the task


class Finding(msgspec.Struct, frozen=True):
    """The finding on one task. flaky: the tests whose outcome changed. detail: what is wrong, for people. log: the end
    of the log of a run that shows it. seconds: of all runs. unwitnessed: no run could show that a log of this task is
    not forged, so that no patch of it is rewarded."""

    task: str
    status: Status
    detail: str = ""
    flaky: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""
    unwitnessed: bool = False


@dataclass(frozen=True)
class ValidationSettings:
    """The settings of a validation. runs: of each patch. jobs: tasks at once."""

    sandbox: str = "local"
    runs: int = 3
    jobs: int = 1
    grading: GradingSettings = DEFAULTS


async def validate_all(
    tasks: Sequence[Task], settings: ValidationSettings, record: Record, on_finding: Callable[[Finding], None]
) -> list[Finding]:
    """Return a finding for each task, in their order; each is recorded as soon as it is there.

    Raises what `validate` does: a task that can't be graded at all ends the run.
    """
    findings: dict[str, Finding] = {}
    waiting = iter(tasks)

    async def work(sandboxes: SandboxPool) -> None:
        for task in waiting:
            finding = record.known(task)
            if finding is None:
                finding = await validate(task, sandboxes, settings.runs, settings.grading)
                record.add(task, finding)
            findings[task.id] = finding
            on_finding(finding)

    try:
        pool = SandboxPool(settings.sandbox, concurrency=settings.jobs)
        async with pool as sandboxes, asyncio.TaskGroup() as group:
            for _ in range(settings.jobs):
                group.create_task(work(sandboxes))
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [findings[task.id] for task in tasks]


async def validate(task: Task, sandboxes: Sandboxes, runs: int = 3, settings: GradingSettings = DEFAULTS) -> Finding:
    """Run the oracle `runs` times on the gold patch and as often on none; `BROKEN` where the grader fails. Raises
    `UserError` where the grader is not installed."""
    if not task.oracle.gold_patch.strip():
        return Finding(task.id, Status.UNSOUND, "it has no gold patch")
    started = time.monotonic()
    try:
        gold = [await try_patch(task, task.oracle.gold_patch, sandboxes, settings) for _ in range(runs)]
        empty = [await try_patch(task, "", sandboxes, settings) for _ in range(runs)]
        finding = judge_runs(task, gold, empty)
    except PatchError as error:
        finding = Finding(task.id, Status.UNSOUND, f"the gold patch can't be applied: {error}")
    except GraderError as error:
        finding = Finding(task.id, Status.BROKEN, str(error))
    return msgspec.structs.replace(finding, seconds=round(time.monotonic() - started, 3))


def judge_runs(task: Task, gold: Sequence[Trial], empty: Sequence[Trial]) -> Finding:
    """Judge a task by the runs with the gold patch and those without one."""
    flaky = tuple(name for name in _expected(task) if _changes(name, gold) or _changes(name, empty))
    log = gold[0].log[-LOG_CHARACTERS:]
    if wrong := _wrong(task, gold[0], empty[0], flaky):
        return Finding(task.id, Status.UNSOUND, wrong, flaky, log=log)
    if flaky:
        return Finding(task.id, Status.FLAKY, f"outcomes change: {_some(flaky)}", flaky)
    refused = next((trial for trial in gold if not trial.solved or trial.rejected), None)
    if refused is not None:
        reason = refused.details.get("rejection_reason", "the oracle wants more")
        detail = f"every test passes with the gold patch, which is not accepted: {reason}"
        return Finding(task.id, Status.UNSOUND, detail, log=log, unwitnessed=refused.rejected == "unwitnessed")
    return Finding(task.id, Status.SOUND)


def without_flaky(task: Task, flaky: Collection[str]) -> Task | None:
    """Return the task without these tests; None where no FAIL_TO_PASS is left."""
    fail_to_pass = tuple(name for name in task.oracle.fail_to_pass if name not in flaky)
    pass_to_pass = tuple(name for name in task.oracle.pass_to_pass if name not in flaky)
    if not fail_to_pass:
        return None
    return replace(task, oracle=replace(task.oracle, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass))


def usable(tasks: Sequence[Task], findings: Sequence[Finding]) -> list[Task]:
    """Return the sound tasks, and the flaky ones without their flaky tests where some FAIL_TO_PASS is left."""
    kept = [
        without_flaky(task, finding.flaky)
        for task, finding in zip(tasks, findings, strict=True)
        if finding.status in (Status.SOUND, Status.FLAKY)
    ]
    return [task for task in kept if task is not None]


def summary(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the counts of findings, as plain JSON types."""
    return {
        "tasks": len(findings),
        "counts": {status.value: sum(finding.status is status for finding in findings) for status in Status},
        "unwitnessed": sum(finding.unwitnessed for finding in findings),
        "quarantined_tests": sum(len(finding.flaky) for finding in findings),
        "task_seconds": round(sum(finding.seconds for finding in findings), 3),
    }


class _Line(Finding, frozen=True, kw_only=True):
    digest: str


class Record:
    """Findings in a file, one a line, so that an interrupted validation continues where it stopped.

    A finding counts for the same task, validated in the same way. A finding of a failed grader does not count: the task
    is tried again. Raises `UserError` where the file holds something else or can't be read.
    """

    def __init__(self, path: Path, settings: ValidationSettings) -> None:
        self.path = path
        self._settings = settings
        text = files.read_given(self.path, "the record") if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        rest = text[len(whole) :]
        if rest and not rest.startswith(b"{"):
            raise UserError(f"{path} is no record of a validation: give another file")
        try:
            lines = msgspec.json.Decoder(_Line).decode_lines(whole)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no record of a validation ({error}): give another file") from error
        if rest:  # a killed run left a part of a line
            self.path.write_bytes(whole)
        self._known = {line.digest: line for line in lines if line.status is not Status.BROKEN}

    def known(self, task: Task) -> Finding | None:
        return self._known.get(self._digest(task))

    def add(self, task: Task, finding: Finding) -> None:
        line = _Line(**msgspec.structs.asdict(finding), digest=self._digest(task))
        with files.writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.append(self.path, msgspec.json.encode(line) + b"\n")

    def _digest(self, task: Task) -> str:
        way = [self._settings.sandbox, self._settings.runs]
        return hashlib.sha256(orjson.dumps([task.to_dict(), way], option=orjson.OPT_SORT_KEYS)).hexdigest()


def _expected(task: Task) -> tuple[str, ...]:
    """Return the expected tests, each once: a test may be in both lists."""
    return tuple(dict.fromkeys((*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)))


def _changes(name: str, trials: Sequence[Trial]) -> bool:
    return len({trial.tests[name] for trial in trials}) > 1


def _wrong(task: Task, gold: Trial, empty: Trial, flaky: Collection[str]) -> str:
    """Return what the tests that are not flaky say against the task; empty where they say nothing."""
    steady = [name for name in _expected(task) if name not in flaky]
    fail_to_pass, pass_to_pass = set(task.oracle.fail_to_pass), set(task.oracle.pass_to_pass)
    found = {
        "fail with the gold patch": [name for name in steady if not gold.tests[name]],
        "are FAIL_TO_PASS but pass without a patch": [n for n in steady if n in fail_to_pass and empty.tests[n]],
        "are PASS_TO_PASS but fail without a patch": [n for n in steady if n in pass_to_pass and not empty.tests[n]],
    }
    wrong = [f"{len(names)} of {len(steady)} tests {what}: {_some(names)}" for what, names in found.items() if names]
    runs = {"with the gold patch": gold, "without a patch": empty}
    odd = [f"{which} the time limit is reached" for which, trial in runs.items() if trial.timed_out]
    if gold.details.get("unnamed") and not gold.timed_out:
        odd.append(f"the output of {task.oracle.command!r} names none of the tests")
    return "; ".join(odd + wrong)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_TESTS} more" if len(names) > SHOWN_TESTS else ""
    return ", ".join(names[:SHOWN_TESTS]) + more
