"""What every way of grading shares: the patches that are refused, the values, and the shape of the evidence."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from data_sources.arguments import ArgumentError
from data_sources.task import Image, Oracle
from rewards.score import Score
from rollout.patch import MAX_PATCH_BYTES, OVERSIZED, PatchError
from rollout.sandbox.base import Limits, Sandbox

Mode = Literal["plus_minus", "binary", "fraction"]
MODES: tuple[Mode, ...] = get_args(Mode)

LOG_TAIL_CHARACTERS = 4_000


class Sandboxes(Protocol):
    """What opens fresh sandboxes, such as `rollout.sandbox.SandboxPool`."""

    def open(
        self, files: Mapping[str, str | bytes], limits: Limits | None = None, image: Image | None = None
    ) -> AbstractAsyncContextManager[Sandbox]: ...


@dataclass(frozen=True)
class Trial:
    """One run of an oracle on one patch.

    tests: each expected test → whether it passed; one that did not run failed. solved: what the oracle makes of them.
    exit_code: of what ran the tests, None where that is not known. details: further evidence, as plain JSON types.
    refuted: the outcome where the results are not to be believed (`details["disbelief"]` says why); they earn nothing.
    """

    tests: Mapping[str, bool]
    solved: bool
    log: str
    exit_code: int | None = None
    timed_out: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    refuted: Literal["", "forged", "special_cased"] = ""

    def share(self, names: tuple[str, ...]) -> float:
        """The share of these tests that passed; 1 where there are none."""
        return sum(self.tests[name] for name in names) / len(names) if names else 1.0


# Runs an oracle on a patch. Raises `PatchError` where the patch can't be applied, `GraderError` where the grader fails.
TryPatch = Callable[[str], Awaitable[Trial]]


async def judge(oracle: Oracle, patch: str, mode: Mode, try_patch: TryPatch) -> Score:
    """The score of a patch. Raises what `try_patch` does, but for `PatchError`; `ArgumentError` for an unknown mode.

    Values where the patch solves the task, and where it does not: `plus_minus` +1 and -1, `binary` 1 and 0; `fraction`
    is the share of all expected tests that pass, but 0 unless a FAIL_TO_PASS test does, so that doing nothing earns 0.
    `evidence["outcome"]` is one of solved, failed, timeout, forged, special_cased, empty_patch, oversized_patch,
    unappliable_patch.
    """
    if mode not in MODES:
        raise ArgumentError(f"unknown reward mode {mode!r}; available: {', '.join(MODES)}")
    started = time.monotonic()
    size = len(patch.encode("utf-8", "replace"))
    evidence: dict[str, Any] = {"patch_bytes": size}
    if not patch.strip():
        return _refused(mode, "empty_patch", "the patch changes nothing", evidence)
    if size > MAX_PATCH_BYTES or patch == OVERSIZED:
        return _refused(mode, "oversized_patch", f"the patch has more than {MAX_PATCH_BYTES} bytes", evidence)
    try:
        trial = await try_patch(patch)
    except PatchError as error:
        return _refused(mode, "unappliable_patch", str(error), evidence)
    return _scored(mode, oracle, trial, evidence | {"seconds": time.monotonic() - started})


def _refused(mode: Mode, outcome: str, detail: str, evidence: dict[str, Any]) -> Score:
    components = {"fail_to_pass": 0.0, "pass_to_pass": 0.0}
    return Score(_value(mode, False, 0.0), False, components, {"outcome": outcome, "detail": detail, **evidence})


def _scored(mode: Mode, oracle: Oracle, trial: Trial, evidence: dict[str, Any]) -> Score:
    components = {"fail_to_pass": trial.share(oracle.fail_to_pass), "pass_to_pass": trial.share(oracle.pass_to_pass)}
    share = trial.share((*oracle.fail_to_pass, *oracle.pass_to_pass)) if components["fail_to_pass"] else 0.0
    solved = trial.solved and not trial.refuted
    if trial.refuted:
        components, share = dict.fromkeys(components, 0.0), 0.0
    shown = {
        "outcome": trial.refuted or ("timeout" if trial.timed_out else "solved" if solved else "failed"),
        "tests": dict(trial.tests),
        "log": trial.log[-LOG_TAIL_CHARACTERS:],
        "exit_code": trial.exit_code,
    }
    value = _value(mode, solved, share)
    return Score(value, solved, components, {**shown, **trial.details, **evidence})


def _value(mode: Mode, solved: bool, share: float) -> float:
    if mode == "fraction":
        return share
    return 1.0 if solved else -1.0 if mode == "plus_minus" else 0.0
