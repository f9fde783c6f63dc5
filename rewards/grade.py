"""Grade a patch by the task's oracle, of whichever kind it is.

| oracle | graded by |
| --- | --- |
| `TestOracle` | `rewards.tests`, in any sandbox |
| `HarnessOracle` | `rewards.swebench.sandboxed`, in any sandbox with an image; or the harness itself, on Docker |
"""

from __future__ import annotations

from dataclasses import dataclass

from data_sources.task import HarnessOracle, Task
from rewards import tests
from rewards.score import Score
from rewards.swebench import official, sandboxed
from rewards.swebench.client import harness_for
from rewards.verdict import Mode, Sandboxes, Trial, judge


@dataclass(frozen=True)
class HarnessSettings:
    """How the tasks of the SWE-bench harness are graded.

    python: interpreter that has swebench 5; empty is the one that runs this. official: by the harness's own
    `run_instance` on Docker, in place of the same script and parser in our sandboxes. control: believe a log that earns
    something only where falsified tests fail (`rewards.control`); not of the official harness's own runs.
    """

    python: str = ""
    official: bool = False
    control: bool = True


SANDBOXED = HarnessSettings()


async def grade(
    task: Task,
    patch: str,
    sandboxes: Sandboxes,
    mode: Mode = "plus_minus",
    harness: HarnessSettings = SANDBOXED,
) -> Score:
    """The score of a patch (`rewards.verdict.judge` says what there is). Raises `GraderError` where the grader failed,
    `ArgumentError` for an unknown mode or where swebench is needed and is not there."""
    return await judge(task.oracle, patch, mode, lambda text: try_patch(task, text, sandboxes, harness))


async def try_patch(
    task: Task,
    patch: str,
    sandboxes: Sandboxes,
    harness: HarnessSettings = SANDBOXED,
) -> Trial:
    """One run of the task's oracle; an empty patch changes nothing. Raises `PatchError`, `GraderError`."""
    if not isinstance(task.oracle, HarnessOracle):
        return await tests.try_patch(task, patch, sandboxes)
    worker = await harness_for(harness.python)
    if harness.official:
        return await official.try_patch(task, patch, worker)
    return await sandboxed.try_patch(task, patch, sandboxes, worker, control=harness.control)
