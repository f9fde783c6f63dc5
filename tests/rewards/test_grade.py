"""An oracle from outside the packages: one class, one grader, no line anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests.data_sources.tasks import GOLD, make_task

from slime_swe.data_sources.task import Oracle, Task
from slime_swe.errors import UserError
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial, grade
from slime_swe.rewards.redteam.cases import target_of
from slime_swe.rewards.validation import Status, validate


@dataclass(frozen=True)
class LengthOracle(Oracle):
    """Patches must be short."""

    kind = f"{__name__}.LengthOracle"
    grader = f"{__name__}.try_length"
    most: int = 1000


async def try_length(task: Task, patch: str, sandboxes: object, settings: GradingSettings) -> Trial:
    if "binary" in patch:
        raise PatchError("no text")
    if "broken" in patch:
        raise GraderError("no ruler")
    short = 0 < len(patch) <= task.oracle.most
    return Trial(dict.fromkeys(task.oracle.fail_to_pass, short), short, f"{len(patch)} characters")


TASK = replace(make_task(), oracle=LengthOracle(("short",), gold_patch=GOLD))


@pytest.mark.parametrize(
    ("patch", "outcome", "values"),
    [
        (GOLD, "solved", (1.0, 1.0, 1.0)),
        ("x" * 1001, "failed", (-1.0, 0.0, 0.0)),
        ("binary", "unappliable_patch", (-1.0, 0.0, 0.0)),
        ("", "empty_patch", (-1.0, 0.0, 0.0)),
    ],
)
async def test_an_oracle_from_elsewhere_is_graded_by_its_own_grader(patch, outcome, values):
    task = Task.from_dict(TASK.to_dict())
    scores = [await grade(task, patch, None, GradingSettings(mode)) for mode in ("plus_minus", "binary", "fraction")]
    assert {score.evidence["outcome"] for score in scores} == {outcome}
    assert tuple(score.value for score in scores) == values


async def test_its_tasks_prove_themselves_too_and_no_gate_knows_it():
    assert (await validate(TASK, None)).status is Status.SOUND
    assert (
        await validate(replace(TASK, oracle=replace(TASK.oracle, gold_patch="broken")), None)
    ).status is Status.BROKEN
    assert target_of(TASK) == ""


@pytest.mark.parametrize(
    ("path", "message"), [("", "is no dotted path"), ("no_such_module.grade", "no module 'no_such_module'")]
)
async def test_a_grader_that_is_not_there_is_named(path, message, monkeypatch):
    monkeypatch.setattr(LengthOracle, "grader", path)
    with pytest.raises(UserError, match=rf"grader of oracle {LengthOracle.kind}.*{message}"):
        await grade(TASK, GOLD, None)
