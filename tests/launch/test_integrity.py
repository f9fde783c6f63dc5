"""`slime-swe integrity`: what it prints of the plays; the gate has tests of its own."""

from __future__ import annotations

import json

import pytest

from slime_swe.launch.cli import parse, run

NAMES = ("crlf", "coin", "edit-the-tests")


def test_the_document_counts_cases_and_the_plays_of_two_faced_attacks(capsys):
    only = [word for name in NAMES for word in ("--only", name)]
    code = run(["integrity", "subprocess", "--grader", "calls", "--plays", "3", *only, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["passed"]
    counts = {"attacks": 2, "rewarded": 0, "benign_cases": 1, "benign_misgraded": 0, "broken": 0}
    aliases = {"neighbours": 1, "neighbours_misgraded": 0}
    two_faced = {"coin": {"plays": 3, "rewards": 0}}
    (combination,) = document["combinations"]
    for found in (document, combination):
        assert {name: found[name] for name in (*counts, *aliases)} == counts | aliases
        assert found["two_faced"] == two_faced
    assert [row["plays"] for row in combination["rows"]] == [1, 3, 1]


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5", ""])
def test_a_number_of_plays_is_at_least_one(number, capsys):
    with pytest.raises(SystemExit):
        parse(["integrity", "--plays", number])
    assert "give 1 or more" in capsys.readouterr().err
