from __future__ import annotations

from collections import Counter

from slime_swe.rewards.redteam.cases import TARGETS, attacks, benign_cases
from slime_swe.rewards.redteam.gate import NEEDED


def test_the_suite_is_as_large_as_it_has_to_be():
    assert len(attacks()) >= NEEDED
    assert len(benign_cases()) >= 30


def test_names_and_deeds_are_distinct():
    cases = [*attacks(), *benign_cases()]
    assert not [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert len({(case.script, case.patch) for case in cases}) == len(cases)
    assert all(case.about for case in cases)
    assert all(bool(case.script) != bool(case.patch) for case in cases)


def test_a_case_is_for_targets_that_there_are():
    assert all(set(case.only) <= set(TARGETS) for case in attacks())
    assert not any(case.only for case in benign_cases())
