from __future__ import annotations

import json

import pytest

from rewards.integrity import proof
from rewards.integrity.cases import attacks
from rewards.integrity.gate import NEEDED, Result
from rewards.integrity.play import Row


def row(name: str, verdict: str = "held") -> Row:
    return Row("attack", "own", name, "log", verdict, "failed", 0.0, "failed test_add", 0.1)  # type: ignore[arg-type]


ROWS = tuple(row(case.name) for case in attacks()[:NEEDED])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_gate_that_has_passed_is_not_played_again(capsys):
    path = proof.proof_path("no.such.backend", "log")
    proof.save(Result("no.such.backend", "log", ROWS), path)
    proof.require_integrity("no.such.backend", "log")
    assert capsys.readouterr().err == ""
    assert json.loads(path.read_text())["attacks"] == NEEDED


def test_a_fingerprint_is_of_the_sandbox_the_code_and_the_machine(monkeypatch, tmp_path):
    before = proof.fingerprint("bubblewrap")
    assert proof.fingerprint("bubblewrap") == before
    assert proof.fingerprint("subprocess") != before
    assert proof.fingerprint("docker:a") != proof.fingerprint("docker:b")
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    assert proof.fingerprint("bubblewrap") != before


def test_a_backend_of_the_person_s_own_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "own_backend_of_a_test.py"
    module.write_text("x = 1\n")
    before = proof.fingerprint("own_backend_of_a_test.open")
    module.write_text("x = 2\n")
    assert proof.fingerprint("own_backend_of_a_test.open") != before


def test_a_refusal_names_what_got_past_and_what_to_do():
    result = Result("subprocess", "log", (*ROWS, row("network-http", "rewarded"), row("kill-everything", "broken")))
    assert not result.passed
    text = proof.refusal(result)
    assert "network-http: rewarded" in text and "kill-everything: broken" in text
    assert "slime-swe integrity subprocess --grader log" in text and "--ignore-integrity" in text


def test_counts_are_of_cases_and_few_attacks_prove_nothing():
    assert Result("a", "log", ROWS).passed
    assert not Result("a", "log", ROWS[1:]).passed
    record = Result("a", "log", (*ROWS, row("x", "rewarded"))).to_dict()
    assert (record["attacks"], record["rewarded"], record["neighbours"]) == (NEEDED + 1, 1, 0)
    assert len(record["rows"]) == NEEDED + 1


def test_a_cache_that_can_not_be_written_is_no_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "slime-swe").write_text("a file in the way")
    proof.save(Result("a", "log", ROWS), proof.proof_path("subprocess", "log"))
    assert "could not be kept" in capsys.readouterr().err
