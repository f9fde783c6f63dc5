"""Grade by SWE-bench: its eval script, its log parser, its report.

| `settings.harness` | who runs the eval script |
| --- | --- |
| `sandboxed` | a fresh sandbox of ours, with its limits and its network; a log that would be rewarded is controlled |
| `official` | swebench's own `run_instance` on Docker: no limit but its time, root with SYS_ADMIN, Docker's network; nothing that the patch changes is put back but by the eval script |

The negative control of a log (`rewards.negative_control`) mutates the tests that the eval script puts in place, and
withholds what they expect. The official harness's own runs have no control.

Test ids are `path::name`, as pytest has them, or `name (module.Class)` and `name`, which are looked for in the files
that the script restores. A test that is not found there is not mutated.
"""  # noqa: E501 (a table's row)

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from slime_swe.data_sources.corpora.eval_prologue import START
from slime_swe.data_sources.task import HarnessOracle, Image, Task
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.errors import UserError
from slime_swe.patches import PatchError, header_paths, make_patch, paths_of
from slime_swe.rewards.data_cases import JSON, SUFFIXES
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial
from slime_swe.rewards.mutated_files import (
    Files,
    MutatedFiles,
    alter_files,
    known_control,
    mutate_files,
    pytest_options,
    read_files,
    records_in,
    rewrite_files,
)
from slime_swe.rewards.negative_control import ControlRun, uncontrolled, with_negative_control
from slime_swe.rewards.room import cause_found, image_limits, put
from slime_swe.rewards.shared import cached
from slime_swe.rewards.swebench.harness import Applied, Harness, apply_in, harness_for, image_of, instance_of, oracle_of
from slime_swe.rewards.withheld import Records
from slime_swe.sandbox.base import ExecResult, Sandbox, SandboxError, Sandboxes

OFFICIAL_FOLDER = "/testbed"  # swebench's `CONTAINER_WORKDIR`
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Return the tests' results with the patch; an empty one is not applied. Raises `PatchError`, `GraderError`, and
    `UserError` where swebench is not installed."""
    harness = await harness_for(settings.harness_python)
    if settings.harness == "official":
        return uncontrolled(await official(task, patch, harness))
    try:
        return await sandboxed(task, patch, sandboxes, harness, control=settings.negative_control and bool(patch))
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


async def official(task: Task, patch: str, harness: Harness) -> Trial:
    """Grade by swebench's own run. Raises `UserError` for a task whose repository is not the image's `/testbed`."""
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
    """Grade by the eval script in our sandboxes. control: believe a log that would be rewarded only with a witness.
    Raises `SandboxError` besides what `try_patch` raises."""
    evaluation = Evaluation(task, await harness.script(instance_of(task)), sandboxes)
    runs = _Runs(evaluation, patch, harness, control)
    async with cause_found(patch, evaluation.pristine):
        return await with_negative_control(task, runs) if control else uncontrolled(await runs.first())


@dataclass(frozen=True)
class _Runs:
    """The runs of one patch: a `ControlledRuns`. controlled: whether the first is to look as the others do."""

    evaluation: Evaluation
    patch: str
    harness: Harness
    controlled: bool

    async def first(self) -> Trial:
        copied = self.controlled and not embeds_test_patch(self.evaluation.script)
        done = await self.evaluation.run(self.patch, await restored_tests(self.evaluation) if copied else NO_TESTS)
        result, applied = done.result, done.applied
        report = {} if result.timed_out else await self.harness.report(self.evaluation.instance, result.output)
        details = {
            "exit_code": result.exit_code,
            "log_truncated": result.truncated,
            "applied_by": applied.command if applied else None,
            "ignored_paths": applied.ignored if applied else [],
        }
        return _trial(self.evaluation.oracle, report, result.output, timed_out=result.timed_out, **details)

    async def control(self, tests: Sequence[str]) -> ControlRun:
        restored, record_to = await restored_tests(self.evaluation), f"/tmp/{secrets.token_hex(8)}"
        mutated = _mutated(restored, tests, record_to)
        if not mutated.functions:
            mutated = rewrite_files(restored.restored, tests)
        options = pytest_options() if mutated.withheld else ""  # code can tell this run from the first in any case
        return await self._run(restored, mutated, options, record_to) if mutated.functions else ControlRun()

    async def gold_control(self, tests: Sequence[str]) -> ControlRun:
        return await self._known(self.evaluation.oracle.gold_patch, tests)

    async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
        return await self._known("", tests)

    async def _known(self, patch: str, tests: Sequence[str]) -> ControlRun:
        evaluation, runs = self.evaluation, replace(self, patch=patch)
        return await known_control(evaluation.task, patch, evaluation.sandboxes, tests, runs.control)

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        restored = await restored_tests(self.evaluation)
        files = _read_by_tests(restored)
        places = places_of({*forms, *self.evaluation.oracle.fail_to_pass}, files)
        mutated = await asyncio.to_thread(alter_files, files, places, forms, restored.shown)
        # Files without an altered test are written anew too: the script must not show by its patch which have one.
        written = {path: text for path, text in files.items() if not path.endswith(SUFFIXES)}
        mutated = replace(mutated, files={**written, **mutated.files})
        return await self._run(restored, mutated, pytest_options(only))

    async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        evaluation, runs = self.evaluation, replace(self, patch=self.evaluation.oracle.gold_patch)
        key = ("altered", *map(str, sorted(forms.items())), "only", *only)
        return await known_control(
            evaluation.task, runs.patch, evaluation.sandboxes, key, lambda _: runs.altered(forms, only)
        )

    async def _run(self, tests: RestoredTests, mutated: MutatedFiles, options: str, record_to: str = "") -> ControlRun:
        """Run the script; a run that hangs reports nothing."""
        done = await self.evaluation.run(self.patch, tests, mutated.files, options, record_to)
        log = "" if done.result.timed_out else done.result.output
        expected = frozenset().union(*mutated.functions) if record_to else None
        instance = self.evaluation.instance if record_to else _with_cases(self.evaluation.instance, log)
        reported = await _reported(log, instance, self.harness, expected)
        return mutated.reported(*reported, done.records, timed_out=done.result.timed_out)


def _trial(
    oracle: HarnessOracle, report: dict[str, Any], log: str, *, timed_out: bool = False, **details: Any
) -> Trial:
    """Return what the harness's report says, in the shape that every oracle has."""
    status = report.get("tests_status", {})
    passed = {name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in status.get(kind, {}).get("success", ())}
    tests = {name: name in passed for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)}
    said = {name: value for name, value in report.items() if name != "tests_status"}
    return Trial(tests, bool(report.get("resolved")), log, timed_out=timed_out, details={"harness": said, **details})


def _mutated(tests: RestoredTests, names: Sequence[str], record_to: str) -> MutatedFiles:
    files = _read_by_tests(tests)
    return mutate_files(files, places_of(names, files), tests.shown, record_to)


def _read_by_tests(tests: RestoredTests) -> Mapping[str, bytes]:
    """Return the code and the data of the tests that the eval script puts in place."""
    return {path: text for path, text in tests.restored.items() if path.endswith((".py", *SUFFIXES, *JSON))}


# `Evaluation`: the runs of one task's eval script, each in a fresh sandbox.
#
# A run of the negative control has its tests mutated. Code under test can read the script. So nothing else may differ
# between runs that code must not tell apart. Others have a line of options for pytest before the tests besides.
#
# - A script that embeds its tests as a patch, as SWE-bench's do, gets mutated tests in that patch.
# - For a script that restores its tests in another way, every run that may be controlled copies the test files once
#   more before the tests, unchanged or mutated.
_LOG_BYTES = 16 << 20
_CONTROL_LOG_BYTES = 4 << 20  # what failing tests print may be anything, and a parser takes a second for each 2 MiB
_SCRIPT, _TESTS = "/tmp/eval.sh", "/tmp/tests"
_HERE_DOCUMENT = re.compile(r"<<\s*(['\"])(?P<end>\w+)\1[^\n]*\n(?P<body>.*?)^(?P=end)$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)


@dataclass(frozen=True)
class RestoredTests:
    """The test files of a task. shown: as the image has them, where agents see them. restored: as the script restores
    them, for the run."""

    shown: Files
    restored: Files


NO_TESTS = RestoredTests({}, {})
NO_FILES: Files = {}


@dataclass(frozen=True)
class Done:
    """A run of the script. applied: None where the patch is empty."""

    applied: Applied | None
    result: ExecResult
    records: Records


@dataclass(frozen=True)
class Evaluation:
    """One task, its eval script as the harness gives it, and where it is run."""

    task: Task
    script: str
    sandboxes: Sandboxes

    @cached_property
    def oracle(self) -> HarnessOracle:
        return oracle_of(self.task)

    @cached_property
    def instance(self) -> dict[str, Any]:
        return instance_of(self.task)

    @cached_property
    def image(self) -> Image:
        """The task's image without its setup, since the script prepares its own shell."""
        return replace(image_of(self.task), setup="")

    @property
    def test_files(self) -> list[str]:
        """The files that the script restores, unless the gold patch changes them too."""
        gold = header_paths(self.oracle.gold_patch)
        return [path for path in self.oracle.protected if path not in gold]

    async def run(
        self,
        patch: str,
        tests: RestoredTests = NO_TESTS,
        mutated: Files = NO_FILES,
        options: str = "",
        record_to: str = "",
    ) -> Done:
        """Run the script with a patch (an empty one is not applied).

        tests: as `restored_tests` gives them; without them the script is run as it is. mutated: what some test files
        hold instead. options: shell before the tests. record_to: the file in which they record values. Raises
        `PatchError`, `UnwrittenError`, `GraderError`, `SandboxError`.
        """
        async with self.pristine(_CONTROL_LOG_BYTES if mutated else _LOG_BYTES) as sandbox:
            applied = await apply_in(sandbox, self.oracle, patch) if patch else None
            result = await self.run_in(sandbox, tests, mutated, options)
            return Done(applied, result, await records_in(sandbox, record_to))

    async def run_in(
        self, sandbox: Sandbox, tests: RestoredTests = NO_TESTS, mutated: Files = NO_FILES, options: str = ""
    ) -> ExecResult:
        """Run the script in a sandbox that has the patch. The arguments are those of `run`."""
        script = with_line(self.script, options)
        if embeds_test_patch(script):
            return await self._run(sandbox, with_embedded_tests(script, tests.shown, mutated) if mutated else script)
        files = {**tests.restored, **mutated}
        for path, content in files.items():
            await put(sandbox, f"{_TESTS}/{path}", content)
        return await self._run(sandbox, with_copied_tests(script, _TESTS, self.image.folder) if files else script)

    async def restored_tests(self) -> RestoredTests:
        """Read the test files without a patch; none where the script does not mark where they run."""
        before = before_the_tests(self.script)
        if before == self.script or not self.test_files:
            return NO_TESTS
        async with cause_found("", self.pristine), self.pristine() as sandbox:
            shown = await read_files(sandbox, self.test_files)
            await self._run(sandbox, before)
            return RestoredTests(shown, await read_files(sandbox, self.test_files))

    def pristine(self, log_bytes: int = _LOG_BYTES) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox without a patch."""
        limits = replace(image_limits(self.oracle.timeout_seconds), output_bytes=log_bytes)
        return self.sandboxes.open(self.task.workspace.files, limits, self.image)

    async def _run(self, sandbox: Sandbox, script: str) -> ExecResult:
        await put(sandbox, _SCRIPT, script.encode())
        return await sandbox.exec(f"/bin/bash {_SCRIPT}", timeout=self.oracle.timeout_seconds)


async def restored_tests(evaluation: Evaluation) -> RestoredTests:
    """Return `Evaluation.restored_tests`, read once for all patches of a task."""
    key = (evaluation.image.name, evaluation.script, evaluation.oracle.protected)
    return await cached("restored tests", key, evaluation.restored_tests)


def before_the_tests(script: str) -> str:
    """Return the script up to the line that marks where the tests' output starts; all of it where none does."""
    before, marked, _ = script.partition(START)
    return before[: before.rfind("\n") + 1] if marked else script


def embeds_test_patch(script: str) -> bool:
    """Say whether a script has one patch, in a here-document before the tests, in which no file has two names."""
    patch = _patch_in(script)
    return patch is not None and all(len(paths_of(section)) == 1 for section in _sections(patch["body"]))


def with_embedded_tests(script: str, shown: Files, tests: Files) -> str:
    """Return the script with another test patch, which turns the shown test files into these. It must embed a patch."""
    patch = _patch_in(script)
    assert patch is not None, script
    others = [section for section in _sections(patch["body"]) if tests.keys().isdisjoint(paths_of(section))]
    made = make_patch({path: shown[path] for path in tests if path in shown}, tests)
    return script[: patch.start("body")] + "".join(others) + made + script[patch.end("body") :]


def with_copied_tests(script: str, source: str, folder: str) -> str:
    """Return the script with all that is in `source` copied to `folder` before the tests."""
    return with_line(script, f"cp -R {shlex.quote(source)}/. {shlex.quote(folder)}/\n")


def with_line(script: str, line: str) -> str:
    """Return the script with this line before the tests."""
    before = before_the_tests(script)
    return before + line + script.removeprefix(before)


def _patch_in(script: str) -> re.Match[str] | None:
    found = [match for match in _HERE_DOCUMENT.finditer(before_the_tests(script)) if _sections(match["body"])]
    return found[0] if len(found) == 1 else None


def _sections(patch: str) -> list[str]:
    """Return the sections of a patch, one for each file."""
    return [section for section in _SECTION.split(patch) if section.startswith("diff --git ")]


def places_of(tests: Collection[str], paths: Collection[str]) -> Mapping[str, str]:
    """Return where each test (id) may be, as `path::Class::name` → its id."""
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


async def _reported(
    log: str, instance: dict[str, Any], harness: Harness, to_fail: frozenset[str] | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tests that the log reports as failed, and as passed; the latter only where one that is `to_fail` has
    not.

    The harness counts a missing test as failed, unless it is asked as for logs that report failures alone.
    """
    failed = _names(await harness.report({**instance, "eval_type": "fail_only"}, log), "failure")
    if to_fail is not None and to_fail <= failed:
        return failed, frozenset()
    return failed, _names(await harness.report(instance, log), "success") - failed


def _with_cases(instance: dict[str, Any], log: str) -> dict[str, Any]:
    """Return the instance with the cases of its deciding tests that altered parameters give other names in the log."""
    functions = {test.partition("[")[0] for test in instance["FAIL_TO_PASS"]}
    named = [test for test in parse_test_log(log) if test.partition("[")[0] in functions]
    known = {*instance["FAIL_TO_PASS"], *instance["PASS_TO_PASS"]}
    return {**instance, "PASS_TO_PASS": [*instance["PASS_TO_PASS"], *(test for test in named if test not in known)]}


def _names(report: dict[str, Any], verdict: str) -> frozenset[str]:
    kinds = report.get("tests_status", {}).values()
    return frozenset(name for kind in kinds for name in kind.get(verdict, ()))
