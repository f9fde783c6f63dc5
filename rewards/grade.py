"""Grade a patch: the grader of the task's kind of oracle runs it, and `grade` says what the outcome is worth.

A grader is `async try_patch(task, patch, sandboxes, settings) -> Trial`. It raises `PatchError` where the patch can't
be applied and `GraderError` where the grader itself fails; an empty patch changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Literal

from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_object
from slime_swe.errors import InfrastructureError, UserError, unknown
from slime_swe.fields import Argument
from slime_swe.patches import MAX_PATCH_BYTES, OVERSIZED, PatchError, apply_patch
from slime_swe.rewards.compose import errors_in
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import Limits, Sandbox, Sandboxes

MODES = ("plus_minus", "binary", "fraction")
HARNESSES = ("sandboxed", "official")

LOG_TAIL_CHARACTERS = 4_000
_CORES = 16  # that a project's own tests may keep busy all the time


class GraderError(InfrastructureError):
    """The grader itself failed, never the policy. The episode is aborted and tried again."""


@dataclass(frozen=True)
class Trial:
    """One run of an oracle on one patch.

    tests: each expected test → whether it passed; one that did not run failed. solved: the oracle's decision.
    exit_code: of what ran the tests, None where that is not known. details: further evidence, as plain JSON types.
    rejected: the outcome where the results are not to be believed (`details["rejection_reason"]` says why); reward 0.
    quality: what the patch is worth in mode `fraction`, -1 to 1, where that is not the share of tests that pass.
    components: further parts of the score, by name, which are logged.
    """

    tests: Mapping[str, bool]
    solved: bool
    log: str
    exit_code: int | None = None
    timed_out: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    rejected: Literal["", "forged", "unwitnessed", "special_cased"] = ""
    quality: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)

    def share(self, names: tuple[str, ...]) -> float:
        """The share of these tests that passed; 1 where there are none."""
        return sum(self.tests[name] for name in names) / len(names) if names else 1.0


@dataclass(frozen=True)
class GradingSettings:
    """How patches are graded: `reward.*` of a recipe. Raises `UserError` for an unknown mode or harness.

    mode: the value of a patch that solves the task, and of one that does not: `plus_minus` +1 and -1, `binary` 1 and 0;
    `fraction` is the share of all expected tests that pass, but 0 unless a FAIL_TO_PASS test does, so that doing
    nothing is worth 0; an oracle without tests of the project says what it is. harness: who runs SWE-bench's eval
    scripts, `sandboxed` (our sandboxes) or `official` (swebench on Docker). harness_python: an interpreter that has
    swebench 5; empty is the one that runs this. negative_control: believe a log that would be rewarded only with a
    witness (`rewards.negative_control`).
    """

    mode: Annotated[str, Argument("swe_reward_mode")] = "plus_minus"
    harness: Annotated[str, Argument("swe_harness")] = "sandboxed"
    harness_python: Annotated[str, Argument("swe_harness_python")] = ""
    negative_control: Annotated[bool, Argument("swe_negative_control")] = True

    def __post_init__(self) -> None:
        for name, given, allowed in (("mode", self.mode, MODES), ("harness", self.harness, HARNESSES)):
            if given not in allowed:
                raise UserError(unknown(f"reward.{name}", given, allowed))


DEFAULTS = GradingSettings()


async def grade(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings = DEFAULTS) -> Score:
    """The score of a patch. Raises `GraderError` where the grader failed, `UserError` where it is not installed.

    `evidence["outcome"]` is one of solved, failed, timeout, forged, unwitnessed, special_cased, empty_patch,
    oversized_patch, unappliable_patch.
    """
    started = time.monotonic()
    size = len(patch.encode("utf-8", "replace"))
    evidence: dict[str, Any] = {"patch_bytes": size}
    if recorded := task.oracle.recorded():
        evidence |= {"oracle": task.oracle.kind, **recorded}
    if not patch.strip():
        return _refused(settings, task, "empty_patch", "the patch changes nothing", evidence)
    if size > MAX_PATCH_BYTES or patch == OVERSIZED:
        return _refused(settings, task, "oversized_patch", f"the patch has more than {MAX_PATCH_BYTES} bytes", evidence)
    try:
        trial = await try_patch(task, patch, sandboxes, settings)
    except PatchError as error:
        return _refused(settings, task, "unappliable_patch", str(error), evidence)
    return _scored(settings, task, trial, evidence | {"seconds": time.monotonic() - started})


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings = DEFAULTS) -> Trial:
    """One run of the task's oracle; an empty patch changes nothing. Raises `PatchError`, `GraderError`, `UserError`."""
    grader: Callable[..., Awaitable[Trial]] = load_object(
        task.oracle.grader, f"the grader of oracle {task.oracle.kind}"
    )
    return await grader(task, patch, sandboxes, settings)


def image_limits(seconds: float) -> Limits:
    """What a project's own tests may use in its image, if they may take so long: far more than an agent's command."""
    return Limits(
        cpu_seconds=ceil(seconds) * _CORES,
        memory_bytes=16 << 30,
        file_bytes=2 << 30,
        disk_bytes=8 << 30,
        processes=2048,
        output_bytes=16 << 20,
    )


def _refused(settings: GradingSettings, task: Task, outcome: str, detail: str, evidence: dict[str, Any]) -> Score:
    components = {"fail_to_pass": 0.0, "pass_to_pass": 0.0}
    value = value_of(settings.mode, solved=False, share=task.oracle.refused_quality)
    return Score(False, value, components, {"outcome": outcome, "detail": detail, **evidence})


def _scored(settings: GradingSettings, task: Task, trial: Trial, evidence: dict[str, Any]) -> Score:
    oracle, solved = task.oracle, trial.solved and not trial.rejected
    components = {"fail_to_pass": trial.share(oracle.fail_to_pass), "pass_to_pass": trial.share(oracle.pass_to_pass)}
    components |= trial.components
    share = trial.quality
    if share is None:
        share = trial.share((*oracle.fail_to_pass, *oracle.pass_to_pass)) if components["fail_to_pass"] else 0.0
    if trial.rejected:
        components, share = dict.fromkeys(components, 0.0), 0.0
    shown = {
        "outcome": trial.rejected or ("timeout" if trial.timed_out else "solved" if solved else "failed"),
        "tests": dict(trial.tests),
        "log": trial.log[-LOG_TAIL_CHARACTERS:],
        "exit_code": trial.exit_code,
        "errors": errors_in(trial.log),
        "quality": share,
    }
    return Score(solved, value_of(settings.mode, solved, share), components, {**shown, **trial.details, **evidence})


def value_of(mode: str, solved: bool, share: float = 0.0) -> float:
    """What an outcome is worth in a mode; share: what it is in `fraction`."""
    if mode == "fraction":
        return share
    return 1.0 if solved else -1.0 if mode == "plus_minus" else 0.0


# Who is the cause where a file of the grader can't be written into a sandbox that has a patch.
#
# A patch of a megabyte unpacks to gigabytes, and fills the disk that its sandbox may use: that is the policy's failure.
# The same error comes from a host whose disk is full: that is none of the policy's. What is said inside the sandbox
# tells nothing of that. So all sandboxes with the patch are left, which frees what they held, and then a fresh one
# without it has to take a file.
#
# Not covered: a disk that another sandbox has filled and freed by then (only `docker` has none of its own), and
# commands that fail on a full disk, as tests may do.
_ROOM = 4 << 20  # bytes: more than an honest patch and the files of its grader take
_FULL = (errno.ENOSPC, errno.EDQUOT)


class UnwrittenError(GraderError):
    """A file of the grader can't be written. size: its bytes."""

    def __init__(self, path: str, size: int, error: OSError) -> None:
        super().__init__(f"the grader's file {path} can't be written: {error}")
        self.path = path
        self.size = size


def speaks_of_a_full_disk(text: str) -> bool:
    return any(os.strerror(number) in text for number in _FULL)


async def put(sandbox: Sandbox, path: str, content: bytes) -> None:
    """Write a file of the grader. Raises `UnwrittenError`."""
    try:
        await sandbox.write_file(path, content)
    except OSError as error:
        raise UnwrittenError(path, len(content), error) from error


@asynccontextmanager
async def cause_found(patch: str, fresh: Callable[[], AbstractAsyncContextManager[Sandbox]]) -> AsyncIterator[None]:
    """Around all sandboxes with this patch, which are opened and left within.

    fresh: opens one without the patch. An `UnwrittenError` becomes a `PatchError` where the patch is the cause; a
    `PatchError` that speaks of a full disk becomes a `GraderError` where it is not. Raises `SandboxError` where no
    fresh sandbox can be had.
    """
    try:
        yield
    except UnwrittenError as error:
        if not patch:
            raise GraderError(str(error)) from error
        await _require_room(fresh, error.path, error.size, error)
        raise PatchError(f"the patch leaves no room: {error}") from error
    except PatchError as error:
        if speaks_of_a_full_disk(str(error)):
            await _require_room(fresh, ".room", 0, error)
        raise


async def _require_room(
    fresh: Callable[[], AbstractAsyncContextManager[Sandbox]], path: str, size: int, error: Exception
) -> None:
    """Raises `GraderError` where a fresh sandbox has none either."""
    async with fresh() as sandbox:
        try:
            await sandbox.write_file(path, bytes(max(size, _ROOM)))
        except OSError as same:
            raise GraderError(f"a fresh sandbox can't take the file {path} either ({same}): {error}") from error


# The answer of a task that asks for one file and not for a repaired repository: what the patch leaves there.
async def answer_in(task: Task, patch: str, path: str) -> str | None:
    """The file's text; None where there is no such file, or it is no UTF-8. An empty patch changes nothing.

    The workspace has no image: its files are all there is. Raises `PatchError`.
    """
    files = await asyncio.to_thread(apply_patch, task.workspace.files, patch)
    try:
        return files[path].decode() if path in files else None
    except UnicodeDecodeError:
        return None
