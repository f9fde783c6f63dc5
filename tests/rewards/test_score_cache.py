"""A score that is given again was given to the same patch before, and repetitions show whether it still would be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Oracle, Task
from slime_swe.rewards import score_cache
from slime_swe.rewards.grade import DEFAULTS, GraderError, GradingSettings, Trial
from slime_swe.rewards.redteam.cases import RIGHT, TARGETS
from slime_swe.rewards.score_cache import CHANGED, CHECKED, KEPT
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.records import Score
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import Sandbox
from tests.data_sources.tasks import GOLD, make_task
from tests.rewards.test_call_values import patch

CALLS = TARGETS["calls"].task()


class Counted:
    """A pool of real sandboxes that counts those that are opened."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool, self.opened = pool, 0

    def open(self, *words: Any, **settings: Any) -> AbstractAsyncContextManager[Sandbox]:
        self.opened += 1
        return self.pool.open(*words, **settings)


@pytest_asyncio.fixture
async def sandboxes() -> AsyncIterator[Counted]:
    async with SandboxPool("local") as pool:
        yield Counted(pool)
    await close_loop_scope()


async def score_of(sandboxes: Counted, text: str, task: Task = CALLS, settings: GradingSettings = DEFAULTS) -> Score:
    return await score_cache.score_of(task, text, sandboxes, "local", settings)


@dataclass(frozen=True)
class Scripted(Oracle):
    """Says of the patches that it is given what the list says, one after the other."""

    kind: ClassVar[str] = f"{__name__}.Scripted"
    grader: ClassVar[str] = f"{__name__}.next_of_list"
    deterministic: ClassVar[bool] = True
    outcomes: ClassVar[list[str]] = []


async def next_of_list(task: Task, text: str, sandboxes: Any, settings: GradingSettings) -> Trial:
    outcome = Scripted.outcomes.pop(0)
    await asyncio.sleep(0)
    if outcome == "broken":
        raise GraderError("the disk is gone")
    return Trial({"t": outcome == "solved"}, outcome == "solved", "", timed_out=outcome == "timeout")


def scripted(*outcomes: str) -> Task:
    Scripted.outcomes[:] = outcomes
    return replace(make_task(), oracle=Scripted(("t",)))


def said(scores: list[Score]) -> list[tuple[Any, ...]]:
    return [(one.evidence["outcome"], *(key for key in (KEPT, CHANGED) if key in one.evidence)) for one in scores]


async def test_a_patch_that_fails_is_graded_once_and_one_that_solves_twice(sandboxes):
    right, wrong = patch(RIGHT), patch("def add(a, b):\n    return 7\n")
    for text, gradings in ((wrong, 1), (right, 2)):
        before, first = sandboxes.opened, await score_of(sandboxes, text)
        of_one = sandboxes.opened - before
        scores = [await score_of(sandboxes, text) for _ in range(5)]
        assert sandboxes.opened - before <= gradings * of_one, "the answers of unpatched code are asked for once"
        assert sandboxes.opened - before >= of_one > 0
        assert {(one.solved, one.value, str(one.components)) for one in [first, *scores]} == {
            (text == right, first.value, str(first.components))
        }
        assert said(scores)[-4:] == [(first.evidence["outcome"], KEPT)] * 4


async def test_patches_that_come_at_once_wait_for_one_grading(sandboxes):
    task = scripted("failed")
    scores = await asyncio.gather(*(score_of(sandboxes, GOLD, task) for _ in range(8)))
    assert sorted(said(scores)) == [("failed",), *[("failed", KEPT)] * 7]


async def test_another_task_patch_sandbox_or_setting_is_graded_by_itself(sandboxes):
    task = scripted(*["failed"] * 5)
    other = replace(task, oracle=replace(task.oracle, timeout_seconds=7.0))
    scores = [await score_of(sandboxes, GOLD, task), await score_of(sandboxes, GOLD, other)]
    scores += [await score_of(sandboxes, f"{GOLD}\n", task)]
    scores += [await score_of(sandboxes, GOLD, task, replace(DEFAULTS, mode="binary"))]
    scores += [await score_cache.score_of(task, GOLD, sandboxes, "docker", DEFAULTS)]
    assert said(scores) == [("failed",)] * 5 and not Scripted.outcomes


async def test_luck_is_not_rewarded_twice(sandboxes, caplog):
    """A patch that draws lots, and is lucky at first: the second episode that writes it gets what it draws."""
    task = scripted("solved", "failed", "failed", "solved")
    scores = [await score_of(sandboxes, GOLD, task) for _ in range(4)]
    assert said(scores) == [("solved",), ("failed", CHANGED), ("failed",), ("solved",)]
    assert f"two gradings of one patch of task {task.id} differ (solved, then failed)" in caplog.text


async def test_luck_is_not_rewarded_twice_in_a_group(sandboxes):
    """The episodes that come at once wait for the second grading, and are graded one by one where it differs."""
    task = scripted("solved", "failed", *["failed"] * 5, "solved")
    scores = await asyncio.gather(*(score_of(sandboxes, GOLD, task) for _ in range(8)))
    assert Counter(said(scores)) == {("solved",): 2, ("failed", CHANGED): 1, ("failed",): 5}
    assert not Scripted.outcomes


async def test_one_of_many_repetitions_is_graded_again(sandboxes):
    task = scripted("failed", *["failed"] * 2, "solved")
    scores = [await score_of(sandboxes, GOLD, task) for _ in range(3 * CHECKED + 1)]
    assert [number for number, one in enumerate(said(scores)) if KEPT not in one] == [0, *range(CHECKED, 97, CHECKED)]
    assert said(scores)[-1] == ("solved", CHANGED)


async def test_what_a_time_limit_decided_or_the_grader_failed_to_say_is_asked_for_again(sandboxes):
    task = scripted("timeout", "broken", "timeout", "solved", "timeout", "failed")
    scores = [await score_of(sandboxes, GOLD, task)]
    with pytest.raises(GraderError):
        await score_of(sandboxes, GOLD, task)
    scores += [await score_of(sandboxes, GOLD, task) for _ in range(3)]
    assert said(scores) == [("timeout",), ("timeout",), ("solved",), ("timeout",)]
    Scripted.outcomes[:] = ["timeout"] * 3
    other = replace(task, id="another")
    assert said(await asyncio.gather(*(score_of(sandboxes, GOLD, other) for _ in range(3)))) == [("timeout",)] * 3


async def test_an_oracle_that_does_not_promise_it_is_asked_each_time(sandboxes, monkeypatch):
    task = scripted("solved", "failed", "solved")
    monkeypatch.setattr(Scripted, "deterministic", False)
    assert said([await score_of(sandboxes, GOLD, task) for _ in range(3)]) == [("solved",), ("failed",), ("solved",)]
    assert not make_task().oracle.deterministic, "the tests of a project"
