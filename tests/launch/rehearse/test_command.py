"""`slime-swe rehearse`: what it refuses, and how an outcome is shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slime_swe.launch.cli import run
from slime_swe.launch.rehearse.checks import Check
from slime_swe.launch.rehearse.evidence import arguments, parameters
from slime_swe.launch.rehearse.jobs import Difference
from slime_swe.launch.rehearse.rehearsal import Outcome, document, figure, show
from slime_swe.launch.slime.checkouts import MEGATRON, PATCHED, SLIME


def test_without_checkouts_it_says_what_makes_them(monkeypatch, capsys):
    monkeypatch.delenv("SLIME_HOME", raising=False)
    assert run(["rehearse", "recipe=qwen25_coder_1_5b"]) == 2
    said = capsys.readouterr().err
    assert "slime-swe rehearse runs checkouts, and SLIME_HOME is not set" in said and "git clone" in said
    assert "engine=" not in said


def test_without_the_packages_it_says_what_makes_their_environment(monkeypatch, tmp_path, capsys):
    for checkout, (mark, text) in {SLIME: (SLIME.mark, ""), MEGATRON: PATCHED}.items():
        for name in (mark, checkout.mark):
            (tmp_path / checkout.variable / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / checkout.variable / name).write_text(text)
        monkeypatch.setenv(checkout.variable, str(tmp_path / checkout.variable))
    monkeypatch.setattr("slime_swe.launch.rehearse.platforms.cpu.PACKAGES", ("nowhere_at_all",))
    assert run(["rehearse", "recipe=qwen25_coder_1_5b"]) == 2
    assert ".venv-slime/bin/slime-swe rehearse" in capsys.readouterr().err


def test_a_recipe_without_gpus_is_run_as_it_is(capsys):
    assert run(["rehearse", "recipe=tiny_cpu"]) == 2
    assert "slime-swe train" in capsys.readouterr().err


def test_a_folder_that_holds_a_rehearsal_is_not_used_again(tmp_path, capsys):
    (tmp_path / "a" / "toy").mkdir(parents=True)
    for faults in ([], ["faults=disk"]):
        words = ["recipe=qwen25_coder_1_5b", f"run.dir={tmp_path}", "run.name=a", *faults]
        assert run(["rehearse", *words]) == 2
        assert "toy is in it: empty it, or give another run.name" in capsys.readouterr().err


@pytest.fixture
def outcome():
    checks = (
        Check("masks", True, 0, 0, "a"),
        Check("loss", False, 0.5, 1e-4, "there"),
        Check("memory", None, None, None, "why"),
    )
    flags = (Difference("--lr", "1e-06", "0.002", "a policy of random weights"),)
    return Outcome(
        "a_recipe", "cpu", "2026-01-01", 3.1, {"toy": 1.0, "rollouts": 2.5}, checks, flags, ("cp 4 -> 2",), "qwen3"
    )


def test_the_document_has_every_check_and_the_seconds_of_the_whole(outcome):
    found = json.loads(json.dumps(document(outcome)))
    assert (found["ok"], found["seconds"]) == (False, 3.1)
    assert found["checks"][1] == {"name": "loss", "ok": False, "value": 0.5, "limit": 1e-4, "look_at": "there"}
    assert found["differing_flags"][0]["flag"] == "--lr"


def test_a_table_says_where_to_look_and_what_was_not_made(outcome, capsys):
    show(outcome)
    text = capsys.readouterr().out
    for line in ("loss: look at there", "memory: not made: why", "cp 4 -> 2", "--lr"):
        assert line in text


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_value_that_is_no_finite_number_is_shown_and_written_as_a_word(outcome, capsys, value):
    """In JSON it would be null, as that of a check that was not made."""
    failed = replace(outcome, checks=(Check("loss", False, float(value), 1e-5, "there"),))
    show(failed)
    assert value in capsys.readouterr().out
    assert document(failed)["checks"][0]["value"] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "–"), (0, "0"), (1, "1"), (12, "12"), (12.34, "12"), (0.85, "0.85"), (3.14159e-7, "3.1e-07")],
        *[(0.999, "0.999"), (0.99999, "0.99999"), (1.002, "1.002")],
    ],
)
def test_a_figure_is_1_where_it_is_1(value, text):
    assert figure(value) == text


LOG = """\
  rotary_base ..................................... 1000000
(MegatronTrainRayActor pid=9)  > number of parameters on (tensor, pipeline) model parallel rank (1, 0): 172864
\x1b[36m(Actor pid=7)\x1b[0m  > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 172865
"""


def test_a_trainers_log_is_read():
    assert arguments(LOG) == {"rotary_base": "1000000"}
    assert parameters(LOG) == {(1, 0): 172864, (0, 0): 172865}
