"""The harness itself: swebench's `run_instance`, on Docker, in the process that holds swebench.

It has no limits but its time, its containers run as root with SYS_ADMIN and Docker's default network, and nothing that
the policy's patch changes is put back but by the eval script.
"""

from __future__ import annotations

from data_sources.arguments import ArgumentError
from data_sources.task import Task
from rewards.swebench.client import Harness
from rewards.swebench.instance import image_of, instance_of, oracle_of
from rewards.swebench.sandboxed import trial
from rewards.verdict import Trial
from rollout.patch import PatchError

FOLDER = "/testbed"  # swebench's `CONTAINER_WORKDIR`


async def try_patch(task: Task, patch: str, harness: Harness) -> Trial:
    """The tests' results with the patch; an empty one is not applied. Raises `PatchError`, `GraderError`.

    Raises `ArgumentError` for a task whose repository is not what the image holds in `/testbed`.
    """
    if task.workspace.files or image_of(task).folder != FOLDER:
        raise ArgumentError(f"task {task.id!r}: the official harness takes the image's {FOLDER} as it is, and no files")
    _require_text(patch)
    oracle = oracle_of(task)
    answer = await harness.run(instance_of(task), patch, oracle.timeout_seconds)
    if "unappliable" in answer:
        raise PatchError(answer["unappliable"].strip())
    return trial(oracle, answer.get("report", {}), answer["log"], timed_out="timed_out" in answer)


def _require_text(patch: str) -> None:
    try:
        patch.encode()
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error
