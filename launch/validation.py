"""Validate many tasks at once, and keep what was found: a run that was stopped goes on where it was."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from data_sources.task import Task
from rewards.grade import SANDBOXED, HarnessSettings
from rewards.validation import Finding, Status, validate, without_flaky
from rollout.sandbox.pool import SandboxPool


@dataclass(frozen=True)
class Plan:
    """How tasks are validated. runs: of each patch. jobs: tasks at once."""

    sandbox: str = "local"
    runs: int = 3
    jobs: int = 1
    harness: HarnessSettings = SANDBOXED


class Progress(Protocol):
    def on_finding(self, finding: Finding) -> None: ...


class Record:
    """Findings in a file, one a line. A finding counts for the same task validated in the same way."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self._plan = plan
        self._known = dict(self._read())

    def known(self, task: Task) -> Finding | None:
        """What an earlier run found; what it failed to find out is not known."""
        return self._known.get(self._digest(task))

    def add(self, task: Task, finding: Finding) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"digest": self._digest(task), **asdict(finding), "status": finding.status.value}
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")

    def _read(self) -> Iterator[tuple[str, Finding]]:
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:  # a killed run left a part of a line
            self.path.write_bytes(whole)
        for line in whole.splitlines():
            fields = orjson.loads(line)
            digest, status = fields.pop("digest"), Status(fields.pop("status"))
            if status is not Status.BROKEN:
                yield digest, Finding(**{**fields, "flaky": tuple(fields["flaky"])}, status=status)

    def _digest(self, task: Task) -> str:
        way = [self._plan.sandbox, self._plan.runs]
        return hashlib.sha256(orjson.dumps([task.to_dict(), way], option=orjson.OPT_SORT_KEYS)).hexdigest()


async def validate_all(tasks: Sequence[Task], plan: Plan, record: Record, progress: Progress) -> list[Finding]:
    """A finding for each task, in their order; each is recorded as soon as it is there.

    Raises what `validate` does: a task that can't be graded at all ends the run.
    """
    findings: dict[str, Finding] = {}
    waiting = iter(tasks)

    async def work(sandboxes: SandboxPool) -> None:
        for task in waiting:
            finding = record.known(task)
            if finding is None:
                finding = await validate(task, sandboxes, plan.runs, plan.harness)
                record.add(task, finding)
            findings[task.id] = finding
            progress.on_finding(finding)

    try:
        async with SandboxPool(plan.sandbox, concurrency=plan.jobs) as sandboxes, asyncio.TaskGroup() as group:
            for _ in range(plan.jobs):
                group.create_task(work(sandboxes))
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [findings[task.id] for task in tasks]


def usable(tasks: Sequence[Task], findings: Sequence[Finding]) -> list[Task]:
    """The sound tasks, and the flaky ones without their flaky tests where some FAIL_TO_PASS is left."""
    usable = {Status.SOUND, Status.FLAKY}
    kept = [
        without_flaky(task, finding.flaky)
        for task, finding in zip(tasks, findings, strict=True)
        if finding.status in usable
    ]
    return [task for task in kept if task is not None]


def summary(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """As plain JSON types."""
    return {
        "tasks": len(findings),
        "counts": {status.value: sum(finding.status is status for finding in findings) for status in Status},
        "quarantined_tests": sum(len(finding.flaky) for finding in findings),
        "task_seconds": round(sum(finding.seconds for finding in findings), 3),
    }
