"""Every attack and all honest work, on the sandboxes that this machine has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.data_sources.task import Workspace
from slime_swe.rewards.redteam.cases import REPOSITORY, TARGETS, Case, Target, attacks, benign_cases
from tests.rewards.redteam.playing import EVERYTHING, played

# Each case is played on one of these in every run, and on all of them where the whole gates are asked for.
COMBINATIONS = (
    ("bubblewrap", "calls"),
    ("bubblewrap", "log"),
    ("bubblewrap", "hidden"),
    ("bubblewrap", "pytest"),
    ("overlay", "repository"),
    ("overlay", "harness"),
    ("bubblewrap", "vulnerability"),
    ("bubblewrap", "arc"),
    ("bubblewrap", "diff"),
    ("bubblewrap", "step"),
    ("bubblewrap", "written"),
)


def by_a_plain_runner(target: Target) -> Target:
    """The same with the runner of `log` in the place of pytest, which takes ten times as long to start."""
    assert target.own is not None
    files = {**target.own.workspace.files, RUNNER: REPOSITORY[RUNNER]}
    oracle = replace(
        target.own.oracle,
        command=TARGETS["log"].oracle.command,
        protected=(*target.own.oracle.protected, RUNNER),
    )
    own = replace(target.own, workspace=Workspace(files), oracle=oracle)
    return replace(target, oracle=oracle, own=own, needs=Target.needs)


RUNNER = "runtests.py"
PLAIN = "written, by a plain runner"
GRADERS = {**TARGETS, PLAIN: by_a_plain_runner(TARGETS["written"])}
PLAYED = (*COMBINATIONS, ("bubblewrap", PLAIN))


def dealt() -> dict[tuple[str, str], list[Case]]:
    """Each case to one combination: to pytest and to what has an image, whose runs take longest, what is about them and
    a few of the others; to the shortest of those that are left."""
    hands: dict[tuple[str, str], list[Case]] = {combination: [] for combination in PLAYED}
    for number, case in enumerate(EVERYTHING.values()):
        fitting = [key for key in hands if GRADERS[key[1]].takes(case)]
        hand = min(_suiting(case, number, fitting), key=lambda key: len(hands[key]))
        hands[hand].append(case)
    return hands


def _suiting(case: Case, number: int, fitting: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of the fitting that the case is about, or that are its turn; else those that take little time."""
    by_pytest = [key for key in fitting if key[1] in ("pytest", "written")]
    in_images = [key for key in fitting if GRADERS[key[1]].in_image]
    if by_pytest and ("pytest" in case.script or "conftest" in case.script or number % 36 == 0):
        return by_pytest
    if in_images and ("git" in case.script or number % 5 == 1):
        return in_images
    return [key for key in fitting if key not in (*by_pytest, *in_images)] or fitting


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sandbox", "grader"), PLAYED)
async def test_no_attack_is_rewarded_and_all_honest_work_is(sandbox, grader, monkeypatch):
    monkeypatch.setitem(TARGETS, grader, GRADERS[grader])
    chosen = dealt()[sandbox, grader]
    result = await played(sandbox, grader, chosen)
    assert result.failures == []
    assert [row.name for row in result.rows] == [case.name for case in chosen]
    assert all(row.evidence for row in result.rows if row.kind == "attack" and row.outcome != "empty_patch")


def test_every_case_is_dealt_once():
    assert sorted(case.name for hand in dealt().values() for case in hand) == sorted(EVERYTHING)
    shared = [hand for (_, grader), hand in dealt().items() if GRADERS[grader].own is None]
    every = sum(map(len, shared))
    assert all(len(hand) >= every // 10 for hand in shared)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended("tests/rewards/redteam/test_every_case.py::test_no_attack_is_rewarded_and_all_honest_work_is")
@pytest.mark.parametrize(("sandbox", "grader"), [*COMBINATIONS, ("overlay", "calls")])
async def test_a_whole_gate_holds(sandbox, grader):
    result = await played(sandbox, grader)
    assert result.failures == []
    assert result.passed
    record = result.to_dict()
    assert record["attacks"] == len([case for case in attacks() if TARGETS[grader].takes(case)])
    assert record["benign_cases"] == len([case for case in benign_cases() if TARGETS[grader].takes(case)])
    assert record["rewarded"] == record["benign_misgraded"] == record["broken"] == 0
