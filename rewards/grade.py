"""How a patch becomes a score: read `grade`, then what it calls.

What happens to a patch, in this order, and the file that does it:

1. *Refused*, without being run, where it is empty or too large. Where it can't be applied (`slime_swe.patches`), the
   grader that tries refuses it.
2. *Guarded*: what it changes of that which decides its own verdict is undone (`guard.py`).
3. *Run* in a fresh sandbox with the tests restored (`test_log.py`, `swebench/grader.py`, `written.py`), or in one that
   holds no answer (`call_values.py`, `arc.py`). Where only a text is compared, nothing runs (`diff.py`,
   `vulnerability.py`).
4. *Believed*, if a log says that it is right, only with a witness: a second run, whose tests withhold what they expect
   and must fail (`negative_control.py`; `mutated_files.py` makes these tests).
5. *Valued* by its outcome (`value_of`). `slime_plugin.py` has each episode's patch graded, once for all that write the
   same where the oracle is deterministic (`score_cache.py`), adds the declared components (`compose.py`) and compares
   the episodes of a task (`advantages.py`).

What tests hold:

- A grader that fails gives no reward: `GraderError` ends the grading, and the finished episode is graded again.
- What the agent touched is not trusted: of its episode a grader gets the patch alone.
- What the policy does is no failure of the grader: a patch that fills the sandbox's disk is refused (`room.py`).
- A log without a witness for any FAIL_TO_PASS test earns no reward, whatever it says (`unwitnessed`).
- A task proves itself: its gold patch is right, and none is not (`validation.py`).
- No scripted cheat is rewarded in a sandbox that isolates, and honest work is graded on its merit (`redteam/gate.py`).

`reward.negative_control=false` leaves out 4, and `reward.harness=official`, for SWE-bench's tasks, 2 and 4.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_object
from slime_swe.errors import InfrastructureError, UserError, unknown
from slime_swe.fields import Argument, Meta
from slime_swe.patches import MAX_PATCH_BYTES, OVERSIZED, PatchError, apply_patch
from slime_swe.rewards.compose import errors_in
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import Limits, Sandboxes

MODES = ("plus_minus", "binary", "fraction")
HARNESSES = ("sandboxed", "official")

LOG_TAIL_CHARACTERS = 4_000
LIMITS = Limits(output_bytes=1 << 20)  # more than an agent sees: a test's line must not be lost in a long log


async def grade(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings | None = None) -> Score:
    """The score of a patch. Raises `GraderError` where the grader failed, `UserError` where it is not installed.

    `evidence["outcome"]` is one of solved, failed, timeout, forged, unwitnessed, special_cased, empty_patch,
    oversized_patch, unappliable_patch.
    """
    started, settings = time.monotonic(), settings or DEFAULTS
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


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings | None = None) -> Trial:
    """Run the task's oracle once, by the grader whose dotted path the oracle names: an `async` function of these
    arguments. An empty patch changes nothing. Raises `PatchError` where the patch can't be applied, `GraderError` where
    the grader itself fails, `UserError` where there is no such grader.
    """
    grader: Callable[..., Awaitable[Trial]] = load_object(
        task.oracle.grader, f"the grader of oracle {task.oracle.kind}"
    )
    return await grader(task, patch, sandboxes, settings or DEFAULTS)


def _refused(settings: GradingSettings, task: Task, outcome: str, detail: str, evidence: dict[str, Any]) -> Score:
    components = {"fail_to_pass": 0.0, "pass_to_pass": 0.0}
    value = value_of(settings.mode, solved=False, share=task.oracle.refused_quality)
    return Score(
        False, value, components, {"outcome": outcome, "detail": detail, **evidence}, spread=_spread(settings, task)
    )


def _spread(settings: GradingSettings, task: Task) -> float | None:
    return settings.least_spread if task.oracle.by_degree else None


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
    shown |= {**trial.details, **evidence}
    return Score(solved, value_of(settings.mode, solved, share), components, shown, spread=_spread(settings, task))


def value_of(mode: str, solved: bool, share: float = 0.0) -> float:
    """Return what an outcome is worth in a mode. share: what it is worth in `fraction`."""
    if mode == "fraction":
        return share
    return 1.0 if solved else -1.0 if mode == "plus_minus" else 0.0


@dataclass(frozen=True)
class Trial:
    """One run of an oracle on one patch.

    tests: each expected test → whether it passed; one that did not run failed. solved: the oracle's decision.
    exit_code: of what ran the tests, None where that is not known. details: further evidence, as plain JSON types.
    rejected: the outcome where the results are not to be believed (`details["rejection_reason"]` says why); it is worth
    what a failure is.
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
        """Return the share of these tests that passed; 1 where there are none."""
        return sum(self.tests[name] for name in names) / len(names) if names else 1.0


class GraderError(InfrastructureError):
    """The grader itself failed, never the policy. The grading is tried again; the episode has no reward until then."""


@dataclass(frozen=True)
class GradingSettings:
    """The settings of grading: `reward.*` of a recipe. Raises `UserError` for an unknown mode or harness.

    mode: the value of a patch that solves the task, and of one that does not: `plus_minus` +1 and -1, `binary` 1 and 0;
    `fraction` is the share of all expected tests that pass, but 0 unless a FAIL_TO_PASS test does, so that doing
    nothing is worth 0; an oracle without tests of the project says what it is. harness: who runs SWE-bench's eval
    scripts, `sandboxed` (our sandboxes) or `official` (swebench on Docker). harness_python: an interpreter that has
    swebench 5; empty is the one that runs this. negative_control: believe a log that would be rewarded only with a
    witness (`rewards.negative_control`). least_spread: of rewards that are a degree, how far apart those of a group
    must lie to teach anything.
    """

    mode: Annotated[str, Argument("swe_reward_mode")] = "plus_minus"
    harness: Annotated[str, Argument("swe_harness")] = "sandboxed"
    harness_python: Annotated[str, Argument("swe_harness_python")] = ""
    negative_control: Annotated[bool, Argument("swe_negative_control")] = True
    least_spread: Annotated[float, Argument("swe_least_spread"), Meta(ge=0)] = 0.05

    def __post_init__(self) -> None:
        for name, given, allowed in (("mode", self.mode, MODES), ("harness", self.harness, HARNESSES)):
            if given not in allowed:
                raise UserError(unknown(f"reward.{name}", given, allowed))


DEFAULTS = GradingSettings()


async def answer_in(task: Task, patch: str, path: str) -> str | None:
    """Return the text that a patch leaves in one file, for the tasks that ask for an answer there; None where there is
    no such file, or it is no UTF-8. An empty patch changes nothing.

    The workspace has no image: its files are all there is. Raises `PatchError`.
    """
    files = await asyncio.to_thread(apply_patch, task.workspace.files, patch)
    try:
        return files[path].decode() if path in files else None
    except UnicodeDecodeError:
        return None
