from __future__ import annotations

from collections import Counter

from slime_swe.rewards.redteam.cases import TARGETS, attacks, benign_cases
from slime_swe.rewards.redteam.gate import NEEDED


def test_the_suite_is_as_large_as_it_has_to_be():
    assert len(attacks()) >= NEEDED
    assert len(benign_cases()) >= 40
    assert sum(case.two_faced for case in attacks()) >= 10


def test_names_and_deeds_are_distinct():
    cases = [*attacks(), *benign_cases()]
    assert not [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert len({(case.script, case.patch) for case in cases}) == len(cases)
    assert all(case.about for case in cases)
    assert all(bool(case.script) != bool(case.patch) for case in cases)


def test_what_a_file_can_not_hold_is_put_into_a_patch():
    patches = {case.name: case.written_patch for case in attacks()}
    assert "@@ -1," + "9" * 5000 in patches["patch-with-long-numbers"]
    assert "\ud800" in patches["patch-with-surrogates"] and "\0" in patches["patch-with-nul"]
    assert patches["patch-of-many-lines"].splitlines().count("+") == 40_000


def test_a_case_is_for_targets_that_there_are():
    assert all(set(case.only) <= set(TARGETS) for case in attacks())
    assert not any(case.only for case in benign_cases())
