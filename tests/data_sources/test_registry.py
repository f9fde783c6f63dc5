from __future__ import annotations

import bz2
import gzip
import json
import lzma

import pytest

from slime_swe.data_sources.registry import absolute, load_tasks, parse
from slime_swe.errors import UserError
from tests.data_sources.tasks import make_task


def write(path, *lines: object) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def by_import(split: str):
    return [make_task(f"{split}-{i}") for i in range(2)]


def by_hand(split: str):
    return [make_task("a").to_dict()]


def number(split: str):
    return 3


def nothing(split: str):
    return []


def test_a_file_of_tasks(tmp_path):
    tasks = [make_task("a"), make_task("b")]
    spec = write(tmp_path / "tasks.jsonl", tasks[0].to_dict(), "", tasks[1].to_dict(), "")
    assert load_tasks(spec) == tasks


def test_any_import_path():
    assert [task.id for task in load_tasks("tests.data_sources.test_registry.by_import:x")] == ["x-0", "x-1"]


def test_a_loader_of_one_s_own_may_take_a_file():
    parsed = parse("my_module.load:data/tasks.jsonl?limit=3")
    assert (parsed.source, parsed.split, parsed.file) == ("my_module.load", "data/tasks.jsonl", "")
    assert parse("data/v1.2/tasks.jsonl").file and parse("tasks.jsonl").file and parse("a:b/tasks.jsonl").file


def test_the_synthetic_tasks():
    assert load_tasks("synthetic:heldout")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("synthetc:train", "Did you mean 'synthetic'"),
        ("something:train", "Available: arc, bandit, bugsinpy"),
        ("synthetic:heldout?limt=3", "Did you mean 'limit'"),
        ("synthetic:heldout?limit", "options as name=value"),
        ("synthetic:heldout?limit=", "the option limit has no value"),
        ("synthetic:heldout?limit=3&limit=4", "gives an option twice"),
        ("synthetic:heldout?folder=/tmp", "only a corpus has a folder"),
        ("/no/such/file.jsonl?folder=/tmp", "a file has no folder"),
        ("synthetic", "names no split: write synthetic:split"),
        ("synthetic:", "names no split"),
        ("quixbugs", "names no split: write quixbugs:python or quixbugs:java"),
        ("", "names no split"),
        ("no_such.module.load:x", "there is no module 'no_such'"),
        ("slime_swe.data_sources.registry.nothing_here:x", "has no 'nothing_here'"),
        ("tests.data_sources.test_registry.nothing:x", "is empty"),
        ("tests.data_sources.test_registry.by_hand:x", r"must return a list of Task, got \['dict'\]"),
        ("tests.data_sources.test_registry.number:x", "must return a list of Task, got int"),
        ("/no/such/file.jsonl", "can't read the task file /no/such/file.jsonl"),
    ],
)
def test_a_name_that_leads_nowhere(spec, message):
    with pytest.raises(UserError, match=message):
        load_tasks(spec)


def test_a_malformed_line_is_named(tmp_path):
    good = make_task("a").to_dict()
    for bad, message in [
        ("{", "line 3: not a JSON object"),
        ("[]", "it must be a JSON object"),
        ({**good, "id": "b", "statement": 3}, "line 3: task 'b': statement must be str"),
        ({"id": "b"}, "line 3: task 'b': statement is missing; workspace is missing; oracle is missing"),
    ]:
        with pytest.raises(UserError, match=message):
            load_tasks(write(tmp_path / "tasks.jsonl", good, "", bad))


def test_the_mistakes_of_all_records_are_named_at_once_each_with_the_nearest_name(tmp_path):
    good = make_task("a").to_dict()
    image = {**good["workspace"], "image": {"name": "i", "foldr": "/x"}}
    path = write(
        tmp_path / "tasks.jsonl",
        {**good, "statment": "x", "oracle": {**good["oracle"], "fail_too_pass": []}},
        {**good, "id": "b"},
        {**good, "id": "c", "workspace": {**image, "fils": {}}},
    )
    with pytest.raises(UserError) as caught:
        load_tasks(path)
    first, second = str(caught.value).splitlines()
    assert first == (
        f"{path}, line 1: task 'a': statment is not a field: did you mean 'statement'?; "
        "oracle.fail_too_pass is not a field: did you mean 'fail_to_pass'?"
    )
    assert second == (
        f"{path}, line 3: task 'c': workspace.fils is not a field: did you mean 'files'?; "
        "workspace.image.foldr is not a field: did you mean 'folder'?"
    )


def test_lines_that_are_no_json_are_named_at_once_and_a_long_list_is_cut(tmp_path):
    with pytest.raises(UserError) as caught:
        load_tasks(write(tmp_path / "tasks.jsonl", make_task("a").to_dict(), *["{"] * 12))
    *lines, last = str(caught.value).splitlines()
    assert [f"line {number}: not a JSON object" in line for number, line in enumerate(lines, 2)] == [True] * 10
    assert last == "and 2 records more"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (gzip.compress, r"tasks.jsonl is compressed \(gzip\): unpack it first"),
        (bz2.compress, r"compressed \(bzip2\)"),
        (lzma.compress, r"compressed \(xz\)"),
        (lambda content: content.decode().encode("utf-16"), r"is UTF-16: convert it, as by `iconv .* tasks.jsonl`"),
        (lambda content: b"\n \n", "is empty"),
    ],
)
def test_a_file_of_another_kind_is_named_with_the_remedy(change, said, tmp_path):
    content = json.dumps(make_task("a").to_dict()).encode()
    (tmp_path / "tasks.jsonl").write_bytes(change(content))
    with pytest.raises(UserError, match=said):
        load_tasks(str(tmp_path / "tasks.jsonl"))


def test_a_byte_order_mark_is_no_mistake_and_a_folder_is(tmp_path):
    content = json.dumps(make_task("a").to_dict()).encode()
    (tmp_path / "tasks.jsonl").write_bytes(b"\xef\xbb\xbf" + content)
    assert [task.id for task in load_tasks(str(tmp_path / "tasks.jsonl"))] == ["a"]
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        load_tasks(str(tmp_path / "folder.jsonl"))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "tasks.jsonl").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(UserError, match="line 1: not a JSON object"):
        load_tasks(str(tmp_path / "tasks.jsonl"))


def test_ids_of_several_tasks_are_named_at_once(tmp_path):
    names = [f"t{number}" for number in range(12)]
    path = write(tmp_path / "tasks.jsonl", *(make_task(name).to_dict() for name in [*names, "one", *names]))
    with pytest.raises(UserError, match=r"same id, .*: 't0', 't1', .*, 't9', and 2 ids more$"):
        load_tasks(path)


def test_lines_that_are_no_json_and_records_with_mistakes_are_named_together(tmp_path):
    path = write(tmp_path / "tasks.jsonl", "{", {**make_task("a").to_dict(), "statment": ""}, make_task("b").to_dict())
    with pytest.raises(
        UserError, match=r"line 1: not a JSON object: .*\n.*, line 2: task 'a': statment is not a field"
    ):
        load_tasks(path)


def test_an_empty_file(tmp_path):
    with pytest.raises(UserError, match="is empty"):
        load_tasks(write(tmp_path / "tasks.jsonl", ""))


def test_a_file_may_hold_a_list(tmp_path):
    (tmp_path / "tasks.json").write_text(json.dumps([make_task("a").to_dict()]))
    assert [task.id for task in load_tasks(str(tmp_path / "tasks.json"))] == ["a"]
    (tmp_path / "tasks.json").write_text("{}")
    with pytest.raises(UserError, match="must be a list of tasks, got dict"):
        load_tasks(str(tmp_path / "tasks.json"))


def test_paths_are_made_absolute_for_processes_started_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("synthetic:train") == "synthetic:train"
    assert absolute("my.module.load:x") == "my.module.load:x"
    assert absolute("of a source of my own") == "of a source of my own"
    assert absolute("tasks.jsonl?ids=a&b.txt") == "tasks.jsonl?ids=a&b.txt"  # not a name that can be read
    assert absolute("tasks.jsonl?ids=ids.txt&limit=3") == f"{tmp_path}/tasks.jsonl?ids={tmp_path}/ids.txt&limit=3"
    assert absolute("quixbugs:python") == f"quixbugs:python?folder={tmp_path}/corpora/quixbugs"
    assert absolute("quixbugs:python?folder=a%26b") == f"quixbugs:python?folder={tmp_path}/a%26b"


@pytest.mark.parametrize("spec", ["synthetic:train", "a.jsonl?ids=x", "swebench:lite?repo=a/b&before=2020-01-01"])
def test_making_absolute_twice_changes_nothing(spec):
    assert absolute(absolute(spec)) == absolute(spec)
