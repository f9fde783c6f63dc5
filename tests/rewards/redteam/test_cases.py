from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from slime_swe.data_sources.task import ORACLES, Image
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.redteam.cases import MODULE, TARGETS, attacks, benign_cases, target_of


def test_the_suite_is_as_large_as_it_has_to_be():
    for target in TARGETS.values():
        assert sum(target.takes(case) for case in attacks()) >= target.attacks
        assert sum(target.takes(case) for case in benign_cases()) >= (40 if target.own is None else 8)
    assert sum(case.two_faced for case in attacks()) >= 10


def test_names_and_deeds_are_distinct():
    cases = [*attacks(), *benign_cases()]
    assert not [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert len({(case.only, case.script, case.patch, case.reply) for case in cases}) == len(cases)
    assert all(case.about for case in cases)
    assert all(bool(case.script) + bool(case.patch) + bool(case.reply) == 1 for case in cases)


def test_what_a_file_can_not_hold_is_put_into_a_patch():
    patches = {case.name: case.written("patch") for case in attacks()}
    assert "@@ -1," + "9" * 5000 in patches["patch-with-long-numbers"]
    assert "\ud800" in patches["patch-with-surrogates"] and "\0" in patches["patch-with-nul"]
    assert patches["patch-of-many-lines"].splitlines().count("+") == 40_000


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("page", "target", "said"),
    [
        ("arc.md", "arc", "plays {} attacks and {} honest programs"),
        ("diff_rewards.md", "diff", "plays {} attacks and {} honest answers"),
        ("make_tasks.md", "written", "plays {} attacks and {} honest changes"),
    ],
)
def test_the_cases_of_a_target_are_as_many_as_its_page_says(page, target, said):
    counts = [sum(target in case.only for case in cases) for cases in (attacks(), benign_cases())]
    assert said.format(*counts) in " ".join((DOCS / page).read_text().split())


def test_the_page_of_the_gate_has_every_target_and_how_many_attacks_it_needs():
    page = (DOCS / "integrity.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", page, re.MULTILINE) == [
        (target.name, str(target.attacks)) for target in TARGETS.values()
    ]


def test_every_kind_of_oracle_has_a_target():
    made = [target.task(Image("x:1") if target.in_image else None) for target in TARGETS.values()]
    assert [target_of(task) for task in made] == [*TARGETS]
    assert {task.oracle.kind for task in made} == {*ORACLES}


async def test_an_attack_on_likeness_may_have_no_more_than_a_plain_wrong_answer():
    pytest.importorskip("cydifflib")
    task = TARGETS["diff"].task()
    files = task.workspace.files
    wrong = make_patch(files, {**files, MODULE: files[MODULE].replace("a - b", "a * b")})
    score = await grade(task, wrong, None, GradingSettings("fraction"))
    assert {case.only for case in attacks() if case.most} == {("diff",)}
    assert max(case.most for case in attacks()) < score.value < 1


def test_a_case_is_for_targets_that_there_are():
    assert all(set(case.only) <= set(TARGETS) for case in attacks())
    assert {name for case in benign_cases() for name in case.only} == {t.name for t in TARGETS.values() if t.own}
