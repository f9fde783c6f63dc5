"""`slime-swe validate`: many tasks at once, kept and gone on with."""

from __future__ import annotations

import json
import re

import orjson
import pytest

from slime_swe.launch.cli import run
from tests.data_sources.tasks import GOLD, make_task

UNSOUND = {"gold_patch": GOLD.replace("a + b", "a * b")}


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [make_task("one"), make_task("two"), make_task("three", **UNSOUND)]
    (tmp_path / "set.jsonl").write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in made))
    return tmp_path


def validate(capsys, *words: str) -> tuple[int, dict]:
    code = run(["validate", "set.jsonl", "--runs", "2", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_the_summary_and_the_usable_tasks(tasks, capsys):
    code, report = validate(capsys, "--write", "usable.jsonl")
    assert code == 1
    assert report["counts"] == {"sound": 2, "flaky": 0, "unsound": 1, "broken": 0}
    assert [finding["task"] for finding in report["findings"]] == ["three"]
    assert report["record"] == "runs/validation/set.jsonl"
    written = [orjson.loads(line)["id"] for line in (tasks / "usable.jsonl").read_bytes().splitlines()]
    assert written == ["one", "two"]


def test_a_file_that_would_not_be_read_as_tasks_is_refused_before_anything_runs(tasks, capsys):
    assert run(["validate", "set.jsonl", "--write", "usable.json"]) == 2
    assert "--write usable.json must end with .jsonl" in capsys.readouterr().err
    assert not (tasks / "runs").exists()


def test_what_is_known_is_not_looked_for_again(tasks, capsys):
    assert validate(capsys, "--limit", "2")[0] == 0
    record = tasks / "runs" / "validation" / "set.jsonl"
    lines = record.read_bytes()
    record.write_bytes(lines + b'{"half a li')
    assert validate(capsys, "--limit", "2")[1]["counts"]["sound"] == 2
    assert record.read_bytes() == lines, "nothing was added, and the half line is gone"
    validate(capsys)
    assert record.read_bytes().startswith(lines) and b'"three"' in record.read_bytes()


def test_a_changed_task_or_another_way_is_looked_at_again(tasks, capsys):
    validate(capsys, "--limit", "1")
    changed = orjson.dumps(make_task("one", **UNSOUND).to_dict())
    (tasks / "set.jsonl").write_bytes(changed)
    assert validate(capsys)[1]["counts"]["unsound"] == 1
    record = tasks / "runs" / "validation" / "set.jsonl"
    before = len(record.read_bytes().splitlines())
    assert run(["validate", "set.jsonl", "--runs", "1"]) == 1
    assert len(record.read_bytes().splitlines()) == before + 1


def test_what_the_grader_failed_at_is_tried_again(tasks, capsys):
    broken = make_task("one").to_dict()
    broken["workspace"]["image"] = {"name": "none", "folder": "/testbed", "setup": ""}
    (tasks / "set.jsonl").write_bytes(orjson.dumps(broken))
    assert run(["validate", "set.jsonl"]) == 2, "no local sandbox has an image: that is said, and nothing is recorded"
    assert "needs the image none" in capsys.readouterr().err
    assert not (tasks / "runs").exists()


def test_people_get_a_table(tasks, capsys):
    assert run(["validate", "set.jsonl", "--runs", "1"]) == 1
    captured = capsys.readouterr()
    assert re.search(r"2 +sound", captured.out) and re.search(r"1 +unsound", captured.out)
    assert "three: unsound" in captured.out and "3 tasks in" in captured.out
    assert "3/3" in captured.err
