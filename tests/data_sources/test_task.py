from __future__ import annotations

import copy

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_sources.reader import TaskError
from data_sources.task import HarnessOracle, Image, Task
from data_sources.test_log import parse_test_log
from tests.data_sources.tasks import make_task


def test_a_task_survives_json():
    task = make_task()
    assert Task.from_dict(orjson.loads(orjson.dumps(task.to_dict()))) == task


def put(record: dict, dotted: str, value: object) -> dict:
    record = copy.deepcopy(record)
    *folders, last = dotted.split(".")
    place = record
    for key in folders:
        place = place[key]
    place[last] = value
    return record


@pytest.mark.parametrize(
    ("dotted", "value", "message"),
    [
        ("id", 3, "field 'id' must be str"),
        ("statement", None, "field 'statement' must be str"),
        ("workspace", [], "field 'workspace.files' is missing"),
        ("workspace.files", ["a"], "must be dict"),
        ("workspace.files", {"a.py": 3}, r"workspace.files\['a.py'\]' must be text|must be text"),
        ("workspace.files", {"/etc/passwd": ""}, "relative paths inside the repository"),
        ("workspace.files", {"../a": ""}, "relative paths inside the repository"),
        ("workspace.files", {"": ""}, "relative paths inside the repository"),
        ("workspace.files", {"./a.py": ""}, "'workspace.files' must be normalised relative paths"),
        ("workspace.files", {"a//b.py": ""}, "normalised relative paths"),
        ("workspace.files", {"a/": ""}, "normalised relative paths"),
        ("workspace.files", {".": ""}, "normalised relative paths"),
        ("workspace.files", {"a\0.py": ""}, "normalised relative paths"),
        ("workspace.files", {"a/b/c": "", "a": ""}, "'workspace.files' must be paths that are not below a file"),
        ("oracle.fail_to_pass", [], "at least one test"),
        ("oracle.fail_to_pass", [1], "a list of strings"),
        ("oracle.protected", ["other.py"], "paths among workspace.files"),
        ("oracle.timeout_seconds", "long", "must be int or float"),
        ("oracle.timeout_seconds", True, "must be int or float, got 'True'"),
        ("oracle.timeout_seconds", -1, "'oracle.timeout_seconds' must be a number of seconds above 0"),
        ("oracle.timeout_seconds", 0, "a number of seconds above 0"),
        ("metadata", [], "must be dict"),
    ],
)
def test_a_wrong_field_is_named(dotted, value, message):
    with pytest.raises(TaskError, match=message):
        Task.from_dict(put(make_task().to_dict(), dotted, value))


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8
    )
)
def test_any_other_json_is_refused(record):
    with pytest.raises(TaskError):
        Task.from_dict(record)


@pytest.mark.parametrize(
    ("log", "results"),
    [
        ("", {}),
        ("PASSED a.py::t\nFAILED a.py::u - why\nERROR b.py::v", {"a.py::t": True, "a.py::u": False, "b.py::v": False}),
        ("PASSED a.py::t\nFAILED a.py::t", {"a.py::t": False}),
        ("FAILED a.py::t\nPASSED a.py::t", {"a.py::t": False}),
        (" PASSED a.py::t\nsaid PASSED a.py::t\nPASSED nothing", {}),
    ],
)
def test_a_test_log(log, results):
    assert parse_test_log(log) == results


def harness_record():
    record = make_task("harness").to_dict()
    record["workspace"]["image"] = {"name": "example/app:1", "folder": "/testbed", "setup": "source /env"}
    record["oracle"] |= {"repo": "o/app", "version": "1.0", "eval_script": "pytest", "log_parser": "parse_log_pytest"}
    record["oracle"] |= {"eval_type": "pass_and_fail", "command": ""}
    return record


def test_a_task_of_the_harness_survives_a_round_trip():
    task = Task.from_dict(harness_record())
    assert task.workspace.image == Image("example/app:1", setup="source /env")
    assert isinstance(task.oracle, HarnessOracle) and task.oracle.log_parser == "parse_log_pytest"
    assert Task.from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workspace.image", None, "field 'workspace.image' must be there for an oracle with an eval_script"),
        ("workspace.image.name", "", "the name of an image"),
        ("workspace.image.folder", "testbed", "must be an absolute path, got 'testbed'"),
        ("workspace.image.setup", 1, "must be str"),
        ("oracle.eval_type", "maybe", "must be one of pass_and_fail, fail_only, got 'maybe'"),
        ("oracle.log_parser", None, "must be str"),
    ],
)
def test_a_malformed_task_of_the_harness_is_refused(field, value, message):
    with pytest.raises(TaskError) as error:
        Task.from_dict(put(harness_record(), field, value))
    assert message in str(error.value)
