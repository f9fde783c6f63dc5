from __future__ import annotations

from collections import Counter

from rewards.integrity.cases import attacks, neighbours
from rewards.integrity.gate import NEEDED
from rewards.integrity.targets import TARGETS


def test_the_suite_is_as_large_as_it_has_to_be():
    assert len(attacks()) >= NEEDED
    assert len(neighbours()) >= 30


def test_names_and_deeds_are_distinct():
    cases = [*attacks(), *neighbours()]
    assert not [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert len({(case.script, case.patch) for case in cases}) == len(cases)
    assert all(case.about for case in cases)


def test_a_case_is_for_targets_that_there_are():
    assert all(set(case.only) <= set(TARGETS) for case in attacks())
    assert not any(case.only for case in neighbours())
