"""An oracle from outside the packages: one class, one grader, no line anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from slime_swe.data_sources.task import Oracle, Task
from slime_swe.errors import UserError
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial, answer_in, grade
from slime_swe.rewards.redteam.cases import target_of
from slime_swe.rewards.validation import Status, validate
from tests.data_sources.tasks import GOLD, make_task


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


@dataclass(frozen=True)
class NearOracle(Oracle):
    """Says itself what an answer that is not right is worth."""

    kind = f"{__name__}.NearOracle"
    grader = f"{__name__}.try_near"


async def try_near(task: Task, patch: str, sandboxes: object, settings: GradingSettings) -> Trial:
    return Trial({"near": False}, False, "", quality=-0.5, components={"distance": 3.0})


async def test_a_quality_is_the_value_of_fractions_alone_and_components_are_logged():
    task = replace(TASK, oracle=NearOracle(("near",), gold_patch=GOLD))
    scores = [await grade(task, GOLD, None, GradingSettings(mode)) for mode in ("plus_minus", "binary", "fraction")]
    assert [score.value for score in scores] == [-1.0, 0.0, -0.5]
    assert scores[0].components["distance"] == 3.0


async def test_an_answer_is_what_the_patch_leaves_in_its_file():
    added = "--- /dev/null\n+++ b/answer.txt\n@@ -0,0 +1 @@\n+42\n"
    assert await answer_in(TASK, added, "answer.txt") == "42\n"
    assert await answer_in(TASK, "", "answer.txt") is None
    with pytest.raises(PatchError):
        await answer_in(TASK, added.replace("answer.txt", "../answer.txt"), "answer.txt")
