"""The harness's eval script in a fresh sandbox of ours, its log read by the harness's own parser and report.

The container, its limits and its network are the sandbox's; what decides the verdict is swebench's.
"""

from __future__ import annotations

from typing import Any

from data_sources.task import HarnessOracle, Task
from rewards.score import GraderError
from rewards.swebench.apply import Applied
from rewards.swebench.client import Harness
from rewards.swebench.control import controlled
from rewards.swebench.evaluation import NO_TESTS, Evaluation
from rewards.swebench.instance import instance_of
from rewards.swebench.restored import restored_tests
from rewards.verdict import Sandboxes, Trial
from rollout.sandbox.base import ExecResult, SandboxError


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, harness: Harness, *, control: bool = True) -> Trial:
    """The tests' results with the patch; an empty one is not applied. Raises `PatchError`, `GraderError`.

    `control`: believe a log that earns something only where falsified tests fail, which costs a second run.
    """
    evaluation = Evaluation(task, await harness.script(instance_of(task)), sandboxes)
    control = control and bool(patch)
    try:
        tests = await restored_tests(evaluation) if control and not evaluation.brings_tests else NO_TESTS
        applied, result = await evaluation.run(patch, tests)
        report = {} if result.timed_out else await harness.report(evaluation.instance, result.output)
        details = _details(applied, result)
        found = trial(evaluation.oracle, report, result.output, timed_out=result.timed_out, **details)
        return await controlled(evaluation, patch, found, harness) if control else found
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


def trial(oracle: HarnessOracle, report: dict[str, Any], log: str, *, timed_out: bool = False, **details: Any) -> Trial:
    """What the harness's report says, in the shape that every oracle has."""
    status = report.get("tests_status", {})
    passed = {name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in status.get(kind, {}).get("success", ())}
    tests = {name: name in passed for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    said = {name: value for name, value in report.items() if name != "tests_status"}
    return Trial(tests, bool(report.get("resolved")), log, timed_out=timed_out, details={"harness": said, **details})


def _details(applied: Applied | None, result: ExecResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "log_truncated": result.truncated,
        "applied_by": applied.command if applied else None,
        "ignored_paths": applied.ignored if applied else [],
    }
