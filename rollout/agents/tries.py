"""A further try after the test output of the last, as Aider's benchmark gives a second one."""

from __future__ import annotations

import shlex

from slime_swe.data_sources.task import Task
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.rollout.sandbox.base import Sandbox
from slime_swe.rollout.tools import describe, render_log


async def failing_tests(sandbox: Sandbox, task: Task) -> str | None:
    """What the task's tests print; None where all pass, or where nothing is known to run them.

    Hidden tests lie in the agent's sandbox while they run. What is printed decides whether there is another try, never
    the reward. Raises `SandboxError`.
    """
    oracle, hidden = task.oracle, task.oracle.grading_files
    if not oracle.command:
        return None
    try:
        for path, text in hidden.items():
            await sandbox.write_file(path, text.encode())
        result = await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds)
    except OSError as error:  # something is in the way of a test
        return error.strerror or str(error)
    finally:
        if hidden:
            await sandbox.exec(f"rm -rf -- {shlex.join(hidden)}")
    passed = parse_test_log(result.output)
    if not result.timed_out and all(passed.get(name) for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)):
        return None
    return render_log(describe(result))
