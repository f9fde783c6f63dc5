"""A run whose training shows its evaluation does not start; what is allowed is recorded in the run."""

from __future__ import annotations

import json

import pytest

from slime_swe.data_sources.contamination import ContaminationError
from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.preflight import OVERLAP_FILE, check_overlap, left_out, record_overlap
from tests.data_sources.tasks import make_task


def recipe(*overrides: str):
    return resolve("tiny_cpu", list(overrides))


def write(path, *ids: str) -> str:
    path.write_text("\n".join(json.dumps(make_task(name).to_dict()) for name in ids))
    return str(path)


def test_tiny_cpu_shows_nothing_of_what_it_evaluates():
    comparison = check_overlap(recipe())
    assert comparison.compared and comparison.trained == 512 and comparison.evaluated == 256 and not comparison.allowed


def test_overlap_is_refused_and_allowed_by_name(tmp_path):
    training, held_out = write(tmp_path / "train.jsonl", "a", "b"), write(tmp_path / "eval.jsonl", "b")
    sets = [f"data.train=[{training}]", "~data.eval.heldout", "~data.eval.unseen", f"data.eval.mine={held_out}"]
    with pytest.raises(ContaminationError, match="b: same instance as b in training"):
        check_overlap(recipe(*sets))
    comparison = check_overlap(recipe(*sets, "data.allow_overlap=[b]"))
    record_overlap(comparison, tmp_path)
    recorded = json.loads((tmp_path / OVERLAP_FILE).read_text())
    assert recorded["compared"] and (recorded["trained"], recorded["evaluated"]) == (2, 1)
    assert {(pair["evaluated"], pair["trained"]) for pair in recorded["allowed"]} == {("b", "a"), ("b", "b")}


def test_what_options_leave_out_of_training_is_said():
    assert left_out(recipe()) == ""
    chosen = recipe("data.train=['synthetic:train?limit=5','synthetic:train?tests=1-']")
    assert left_out(chosen) == "data.train has 5 of 512 tasks of synthetic:train?limit=5"


def test_another_data_source_is_not_compared():
    comparison = check_overlap(recipe("data.source=my.Source", "data.train=[what my source knows]"))
    assert not comparison.compared


def test_train_refuses_before_it_makes_a_folder(tmp_path, capsys):
    overlapping = ["data.train=[synthetic:train,synthetic:heldout]", f"run.dir={tmp_path}/runs", "run.name=x"]
    assert run(["train", "recipe=tiny_cpu", *overlapping]) == 2
    said = capsys.readouterr().err
    assert "training would show 160 of the evaluation's tasks" in said and "data.allow_overlap=[" in said
    assert not (tmp_path / "runs").exists()


def test_the_doctor_says_it(capsys):
    from slime_swe.launch.doctor import Machine
    from slime_swe.launch.doctor.recipe import check_contamination

    (clean,) = check_contamination(recipe(), Machine())
    assert clean.status.value == "ok" and "512 training and 256 evaluation tasks" in clean.message
    (wrong,) = check_contamination(recipe("data.train=[synthetic:heldout]"), Machine())
    assert wrong.status.value == "failure" and "synthetic-heldout-0000: same instance" in wrong.message
    (unread,) = check_contamination(recipe("data.train=[nothing:here]"), Machine())
    assert unread.status.value == "skipped"
