"""A task as an instance that the harness takes (swebench 5, `make_test_spec`)."""

from __future__ import annotations

from typing import Any

from data_sources.arguments import ArgumentError
from data_sources.task import HarnessOracle, Image, Task


def oracle_of(task: Task) -> HarnessOracle:
    """Raises `ArgumentError` where the task is graded in another way."""
    if not isinstance(task.oracle, HarnessOracle):
        raise ArgumentError(f"task {task.id!r} is graded by a {type(task.oracle).__name__}, not by SWE-bench's harness")
    return task.oracle


def image_of(task: Task) -> Image:
    """Raises `ArgumentError` where there is none."""
    if task.workspace.image is None:
        raise ArgumentError(f"task {task.id!r} is graded by SWE-bench's harness, which needs an image: it names none")
    return task.workspace.image


def instance_of(task: Task) -> dict[str, Any]:
    """The fields of a dataset row that grading reads, as plain JSON types.

    Some log parsers read the id: where a corpus has renamed its tasks, `metadata["instance_id"]` keeps it.
    """
    oracle = oracle_of(task)
    return {
        "instance_id": str(task.metadata.get("instance_id", task.id)),
        "image": image_of(task).name,
        "repo": oracle.repo,
        "version": oracle.version,
        "FAIL_TO_PASS": list(oracle.fail_to_pass),
        "PASS_TO_PASS": list(oracle.pass_to_pass),
        "log_parser": oracle.log_parser,
        "eval_type": oracle.eval_type,
        "eval_script": oracle.eval_script,
    }
