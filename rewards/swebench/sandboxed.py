"""The harness's eval script in a fresh sandbox of ours, its log read by the harness's own parser and report.

The container, its limits and its network are the sandbox's; what decides the verdict is swebench's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from data_sources.task import HarnessOracle, Task
from rewards.limits import image_limits
from rewards.score import GraderError
from rewards.swebench.apply import Applied, apply_in
from rewards.swebench.client import Harness
from rewards.swebench.control import controlled
from rewards.swebench.instance import image_of, instance_of, oracle_of
from rewards.verdict import Sandboxes, Trial
from rollout.sandbox.base import ExecResult, Sandbox, SandboxError

_SCRIPT = "/tmp/eval.sh"


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, harness: Harness, *, control: bool = True) -> Trial:
    """The tests' results with the patch; an empty one is not applied. Raises `PatchError`, `GraderError`.

    `control`: believe a log that earns something only where falsified tests fail, which costs a second run.
    """
    oracle, instance = oracle_of(task), instance_of(task)
    script = await harness.script(instance)
    image = replace(image_of(task), setup="")  # the script prepares its own shell
    try:
        async with sandboxes.open(task.workspace.files, image_limits(oracle.timeout_seconds), image) as sandbox:
            applied = await apply_in(sandbox, oracle, patch) if patch else None
            result = await _evaluate(sandbox, script, oracle.timeout_seconds)
        if result.timed_out:
            return trial(oracle, {}, result.output, timed_out=True, **_details(applied, result))
        report = await harness.report(instance, result.output)
        found = trial(oracle, report, result.output, **_details(applied, result))
        return await controlled(task, patch, found, sandboxes, harness) if control and patch else found
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


async def _evaluate(sandbox: Sandbox, script: str, seconds: float) -> ExecResult:
    try:
        await sandbox.write_file(_SCRIPT, script.encode())
    except OSError as error:
        raise SandboxError(f"the eval script can't be written: {error}") from error
    return await sandbox.exec(f"/bin/bash {_SCRIPT}", timeout=seconds)


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
