from __future__ import annotations

import json

import pytest

from data_sources.reader import TaskError
from data_sources.registry import RegistryError, absolute, load_tasks
from tests.data_sources.tasks import make_task


def write(path, *lines: object) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def by_import(split: str):
    return [make_task(f"{split}-{i}") for i in range(2)]


def nothing(split: str):
    return []


def test_a_file_of_tasks(tmp_path):
    tasks = [make_task("a"), make_task("b")]
    spec = write(tmp_path / "tasks.jsonl", tasks[0].to_dict(), "", tasks[1].to_dict(), "")
    assert load_tasks(spec) == tasks


def test_any_import_path():
    assert [task.id for task in load_tasks("tests.data_sources.test_registry.by_import:x")] == ["x-0", "x-1"]


def test_the_embedded_tasks():
    assert load_tasks("embedded:heldout")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("embeded:train", "Did you mean 'embedded'"),
        ("something:train", "Available: bugsinpy, defects4j, embedded"),
        ("embedded:heldout?limt=3", "Did you mean 'limit'"),
        ("embedded:heldout?limit", "options as name=value"),
        ("embedded:heldout?limit=", "the option limit has no value"),
        ("embedded:heldout?limit=3&limit=4", "gives an option twice"),
        ("embedded:heldout?folder=/tmp", "only a corpus has a folder"),
        ("/no/such/file.jsonl?folder=/tmp", "a file has no folder"),
        ("embedded", "names no split: write embedded:split"),
        ("embedded:", "names no split"),
        ("", "names no split"),
        ("no_such.module.load:x", "no module 'no_such'"),
        ("data_sources.registry.nothing_here:x", "has no 'nothing_here'"),
        ("tests.data_sources.test_registry.nothing:x", "is empty"),
        ("/no/such/file.jsonl", "can't read the task file /no/such/file.jsonl"),
    ],
)
def test_a_name_that_leads_nowhere(spec, message):
    with pytest.raises(RegistryError, match=message):
        load_tasks(spec)


def test_a_malformed_line_is_named(tmp_path):
    good = make_task("a").to_dict()
    for bad, message in [
        ("{", "line 3: not a JSON object"),
        ("[]", "line 3: a task must be a JSON object"),
        ({**good, "id": "b", "statement": 3}, "line 3: task 'b': field 'statement' must be str"),
        ({"id": "b"}, "line 3: task 'b': field 'workspace' is missing|line 3: task 'b': field 'workspace.files'"),
    ]:
        with pytest.raises(TaskError, match=message):
            load_tasks(write(tmp_path / "tasks.jsonl", good, "", bad))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "tasks.jsonl").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(TaskError, match="line 1: not a JSON object"):
        load_tasks(str(tmp_path / "tasks.jsonl"))


def test_two_tasks_of_one_id(tmp_path):
    good = make_task("a").to_dict()
    with pytest.raises(TaskError, match="the id 'a' occurs twice"):
        load_tasks(write(tmp_path / "tasks.jsonl", good, good))


def test_an_empty_file(tmp_path):
    with pytest.raises(RegistryError, match="is empty"):
        load_tasks(write(tmp_path / "tasks.jsonl", ""))


def test_a_file_may_hold_a_list(tmp_path):
    (tmp_path / "tasks.json").write_text(json.dumps([make_task("a").to_dict()]))
    assert [task.id for task in load_tasks(str(tmp_path / "tasks.json"))] == ["a"]
    (tmp_path / "tasks.json").write_text("{}")
    with pytest.raises(TaskError, match="must be a list of tasks, got dict"):
        load_tasks(str(tmp_path / "tasks.json"))


def test_paths_are_made_absolute_for_processes_started_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("embedded:train") == "embedded:train"
    assert absolute("my.module.load:x") == "my.module.load:x"
    assert absolute("of a source of my own") == "of a source of my own"
    assert absolute("tasks.jsonl?ids=a&b.txt") == "tasks.jsonl?ids=a&b.txt"  # not a name that can be read
    assert absolute("tasks.jsonl?ids=ids.txt&limit=3") == f"{tmp_path}/tasks.jsonl?ids={tmp_path}/ids.txt&limit=3"
    assert absolute("quixbugs:python") == f"quixbugs:python?folder={tmp_path}/corpora/quixbugs"
    assert absolute("quixbugs:python?folder=a%26b") == f"quixbugs:python?folder={tmp_path}/a%26b"


@pytest.mark.parametrize("spec", ["embedded:train", "a.jsonl?ids=x", "swebench:lite?repo=a/b&before=2020-01-01"])
def test_making_absolute_twice_changes_nothing(spec):
    assert absolute(absolute(spec)) == absolute(spec)
