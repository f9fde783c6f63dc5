"""Grade by SWE-bench: its eval script, its log parser, its report.

| `settings.harness` | who runs the eval script |
| --- | --- |
| `sandboxed` | a fresh sandbox of ours, with its limits and its network; a log that would be rewarded is controlled |
| `official` | swebench's own `run_instance` on Docker: no limit but its time, root with SYS_ADMIN, Docker's network; nothing that the patch changes is put back but by the eval script |

The negative control of a log (`rewards.negative_control`) mutates the tests that the eval script puts in place. Code
under test can know the tests that its agent has seen, and where one of them is changed, that it is being controlled. So
tests that no agent has seen are mutated in a run of their own, in which the others are as everybody knows them.

Test ids are `path::name`, as pytest has them, or `name (module.Class)` and `name`, which are looked for in the files
that the script restores. A test that is not found there is not mutated.
"""  # noqa: E501 (a table's row)

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import Any

from slime_swe.data_sources.task import HarnessOracle, Task
from slime_swe.errors import UserError
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial
from slime_swe.rewards.mutation import hidden, mutate, tests_in
from slime_swe.rewards.negative_control import ControlRun, with_negative_control
from slime_swe.rewards.swebench.evaluation import (
    NO_TESTS,
    Evaluation,
    Files,
    RestoredTests,
    embeds_test_patch,
    restored_tests,
)
from slime_swe.rewards.swebench.harness import Harness, harness_for, image_of, instance_of, oracle_of
from slime_swe.rollout.sandbox.base import SandboxError, Sandboxes

OFFICIAL_FOLDER = "/testbed"  # swebench's `CONTAINER_WORKDIR`
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """The tests' results with the patch; an empty one is not applied. Raises `PatchError`, `GraderError`, and
    `UserError` where swebench is not installed."""
    harness = await harness_for(settings.harness_python)
    if settings.harness == "official":
        return await official(task, patch, harness)
    try:
        return await sandboxed(task, patch, sandboxes, harness, control=settings.negative_control and bool(patch))
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


async def official(task: Task, patch: str, harness: Harness) -> Trial:
    """Raises `UserError` for a task whose repository is not what the image holds in `/testbed`."""
    if task.workspace.files or image_of(task).folder != OFFICIAL_FOLDER:
        raise UserError(
            f"task {task.id!r}: the official harness takes the image's {OFFICIAL_FOLDER} as it is, and no files"
        )
    try:
        patch.encode()
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error
    oracle = oracle_of(task)
    answer = await harness.run(instance_of(task), patch, oracle.timeout_seconds)
    if "unappliable" in answer:
        raise PatchError(answer["unappliable"].strip())
    return _trial(oracle, answer.get("report", {}), answer["log"], timed_out="timed_out" in answer)


async def sandboxed(task: Task, patch: str, sandboxes: Sandboxes, harness: Harness, *, control: bool) -> Trial:
    """`control`: believe a log that would be rewarded only after further runs. Raises `SandboxError` besides."""
    evaluation = Evaluation(task, await harness.script(instance_of(task)), sandboxes)
    tests = await restored_tests(evaluation) if control and not embeds_test_patch(evaluation.script) else NO_TESTS
    applied, result = await evaluation.run(patch, tests)
    report = {} if result.timed_out else await harness.report(evaluation.instance, result.output)
    details = {
        "exit_code": result.exit_code,
        "log_truncated": result.truncated,
        "applied_by": applied.command if applied else None,
        "ignored_paths": applied.ignored if applied else [],
    }
    trial = _trial(evaluation.oracle, report, result.output, timed_out=result.timed_out, **details)
    return await _controlled(evaluation, patch, trial, harness) if control else trial


def _trial(
    oracle: HarnessOracle, report: dict[str, Any], log: str, *, timed_out: bool = False, **details: Any
) -> Trial:
    """What the harness's report says, in the shape that every oracle has."""
    status = report.get("tests_status", {})
    passed = {name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in status.get(kind, {}).get("success", ())}
    tests = {name: name in passed for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    said = {name: value for name, value in report.items() if name != "tests_status"}
    return Trial(tests, bool(report.get("resolved")), log, timed_out=timed_out, details={"harness": said, **details})


async def _controlled(evaluation: Evaluation, patch: str, trial: Trial, harness: Harness) -> Trial:
    async def run_mutated(text: str, names: Collection[str]) -> ControlRun:
        tests = await restored_tests(evaluation)
        unseen = hidden_tests(tests, names)
        groups = [group for group in (unseen, frozenset(names) - unseen) if group]
        runs = await asyncio.gather(*(one_run(tests, text, group) for group in groups))
        return reduce(or_, runs, ControlRun())

    async def one_run(tests: RestoredTests, text: str, names: Collection[str]) -> ControlRun:
        files, mutated = mutated_files(tests, names)
        if not mutated:
            return ControlRun()
        _, result = await evaluation.run(text, tests, files)
        return await _reported(mutated, "" if result.timed_out else result.output, evaluation.instance, harness)

    return await with_negative_control(trial, evaluation.oracle, patch, run_mutated)


def hidden_tests(files: RestoredTests, tests: Collection[str]) -> frozenset[str]:
    """Those of the tests (ids) that an agent can't have seen as they are run."""
    places = places_of(tests, files.restored)
    unseen = (hidden(text, tests_in(path, places), files.shown.get(path, b"")) for path, text in files.restored.items())
    return frozenset(places[place] for found in unseen for place in found)


def mutated_files(files: RestoredTests, tests: Collection[str]) -> tuple[Files, frozenset[str]]:
    """The files that hold these tests (ids), with the tests mutated; and those of the tests that could be."""
    places = places_of(tests, files.restored)
    made, found = {}, set()
    for path, text in files.restored.items():
        changed, mutated = mutate(text, tests_in(path, places), random.Random(), files.shown.get(path, b""))
        if mutated:
            made[path] = changed
            found |= {places[place] for place in mutated}
    return made, frozenset(found)


def places_of(tests: Collection[str], paths: Collection[str]) -> Mapping[str, str]:
    """Where each test (id) may be, as `path::Class::name` → its id."""
    places = {}
    for test in tests:
        if "::" in test:
            places[test] = test
        elif match := _UNITTEST.fullmatch(test):
            owner = match[2].removesuffix(f".{match[1]}").rpartition(".")[2]
            places |= {f"{path}::{owner}::{match[1]}": test for path in paths}
        else:
            places |= {f"{path}::{test}": test for path in paths}
    return places


async def _reported(mutated: frozenset[str], log: str, instance: dict[str, Any], harness: Harness) -> ControlRun:
    """What the harness reads in the log. It counts a missing test as failed, unless it is asked as for logs that report
    failures alone."""
    failed = mutated & _names(await harness.report({**instance, "eval_type": "fail_only"}, log), "failure")
    if failed == mutated:
        return ControlRun(mutated, failed, frozenset())
    return ControlRun(mutated, failed, mutated & _names(await harness.report(instance, log), "success"))


def _names(report: dict[str, Any], verdict: str) -> frozenset[str]:
    kinds = report.get("tests_status", {}).values()
    return frozenset(name for kind in kinds for name in kind.get(verdict, ()))
