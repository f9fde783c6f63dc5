from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.task import ORACLES, HarnessOracle, Image, Oracle, Task, TestsOracle, Workspace
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.errors import UserError
from slime_swe.patches import apply_patch
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
        ("id", 3, "id must be str, got 3"),
        ("statement", None, "statement must be str, got None"),
        ("statment", "", "statment is not a field: did you mean 'statement'?"),
        ("workspace", [], "workspace must be a JSON object, got []"),
        ("workspace.files", ["a"], "workspace.files must be object, got ['a']"),
        ("workspace.files", {"a.py": 3}, "workspace.files[...] must be str, got {'a.py': 3}"),
        ("workspace.files", {"a/b/c": "", "a": ""}, "workspace.files must have paths that are not below a file"),
        ("oracle", None, "oracle must be a JSON object, got None"),
        (
            "oracle.kind",
            None,
            f"oracle.kind is missing: write {', '.join(ORACLES)}, as docs/tasks.md says",
        ),
        (
            "oracle.kind",
            "test",
            f"oracle.kind: unknown name 'test'. Did you mean 'tests'? Available: {', '.join(sorted(ORACLES))}",
        ),
        ("oracle.kind", "no.such", "oracle.kind='no.such': there is no module 'no'"),
        ("oracle.kind", "math.sqrt", "oracle.kind='math.sqrt' must name a subclass of slime_swe.data_sources.task"),
        ("oracle.command", " ", "oracle.command must be what runs the tests"),
        ("oracle.runner", "nose", "oracle.runner: unknown name 'nose'. Available: lines, pytest"),
        ("oracle.fail_to_pass", [], "oracle.fail_to_pass must be at least one test"),
        ("oracle.fail_to_pass", [1], "oracle.fail_to_pass[0] must be str"),
        ("oracle.protected", ["other.py"], "oracle.protected must be paths among workspace.files, got 'other.py'"),
        ("oracle.timeout_seconds", "long", "oracle.timeout_seconds must be float, got 'long'"),
        ("oracle.timeout_seconds", True, "oracle.timeout_seconds must be float, got True"),
        ("oracle.timeout_seconds", -1, "oracle.timeout_seconds must be float above 0.0, got -1"),
        ("oracle.timeout_seconds", float("inf"), "oracle.timeout_seconds must be a finite number of seconds"),
        ("metadata", [], "metadata must be object"),
        ("metadata", {"a": orjson.loads("[" * 100 + "]" * 100)}, "metadata must be nested at most 100 levels deep"),
    ],
)
def test_a_wrong_field_is_named(dotted, value, message):
    with pytest.raises(UserError) as error:
        Task.from_dict(put(make_task().to_dict(), dotted, value))
    assert f": {message}" in str(error.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "", "./a.py", "a//b.py", "a/", ".", "a\0.py"])
def test_a_file_has_one_name_only(path):
    with pytest.raises(UserError, match=r"workspace\.files must have normalised relative paths inside the repository"):
        Task.from_dict(put(make_task().to_dict(), "workspace.files", {path: ""}))


def test_all_faults_of_a_task_are_named_at_once():
    record = make_task().to_dict() | {"statment": "fix it"}
    del record["statement"]
    del record["oracle"]["fail_to_pass"]
    with pytest.raises(UserError) as error:
        Task.from_dict(record)
    assert str(error.value) == (
        "task 'calc-1': statment is not a field: did you mean 'statement'?; statement is missing; "
        "oracle.fail_to_pass is missing"
    )


def test_what_has_a_default_may_be_left_out():
    oracle = {"kind": "tests", "fail_to_pass": ["a.py::t"], "command": "pytest -rA"}
    task = Task.from_dict({"id": "a", "statement": "fix", "workspace": {}, "oracle": oracle})
    assert task == Task("a", "fix", Workspace(), TestsOracle(("a.py::t",), command="pytest -rA"))


@dataclass(frozen=True)
class LengthOracle(Oracle):
    """An oracle of a user's own."""

    kind = f"{__name__}.LengthOracle"
    most: int = 80


def test_an_oracle_from_elsewhere_is_named_by_its_path():
    task = replace(make_task(), oracle=LengthOracle(("a",), most=7))
    assert task.to_dict()["oracle"]["kind"] == LengthOracle.kind
    assert Task.from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    ("log", "results"),
    [
        ("", {}),
        ("PASSED a.py::t\nFAILED a.py::u - why\nERROR b.py::v", {"a.py::t": True, "a.py::u": False, "b.py::v": False}),
        ("PASSED a.py::t\nFAILED a.py::t", {"a.py::t": False}),
        ("FAILED a.py::t\nPASSED a.py::t", {"a.py::t": False}),
        ("PASSED a.py::t[a b]", {"a.py::t[a b]": True, "a.py::t[a": True}),
        (
            "FAILED a.py::t[a b] - why - so\nPASSED a.py::u in 3 s",
            {"a.py::t[a b]": False, "a.py::t[a": False, "a.py::u in 3 s": True, "a.py::u": True},
        ),
    ],
)
def test_a_test_log(log, results):
    assert results.items() <= parse_test_log(log).items()


def test_what_is_no_line_of_a_test_log():
    assert parse_test_log(" PASSED a.py::t\nsaid PASSED a.py::t\nPASSED nothing\nPASSED\nPASSED  a::b") == {}


def harness_record():
    record = make_task("harness").to_dict()
    image = {"name": "example/app:1", "folder": "/testbed", "setup": "source /env"}
    for name in ("runner", "hidden", "missing"):
        del record["oracle"][name]
    harness = {"kind": "harness", "repo": "o/app", "version": "1.0", "eval_script": "pytest", "command": ""}
    return put(record, "workspace.image", image) | {
        "oracle": record["oracle"] | harness | {"log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}
    }


def test_a_task_of_the_harness_survives_a_round_trip():
    task = Task.from_dict(harness_record())
    assert task.workspace.image == Image("example/app:1", setup="source /env")
    assert isinstance(task.oracle, HarnessOracle) and task.oracle.log_parser == "parse_log_pytest"
    assert Task.from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workspace.image", None, "workspace.image is missing: an oracle of kind 'harness' runs in an image"),
        ("workspace.image.name", "", "workspace.image.name must be the name of an image"),
        ("workspace.image.folder", "testbed", "workspace.image.folder must be an absolute path, got 'testbed'"),
        ("workspace.image.setup", 1, "workspace.image.setup must be str"),
        ("oracle.eval_type", "maybe", "oracle.eval_type: unknown name 'maybe'. Available: fail_only, pass_and_fail"),
        ("oracle.log_parser", None, "oracle.log_parser must be str"),
        ("oracle.eval_script", "", "oracle.eval_script is missing"),
    ],
)
def test_a_malformed_task_of_the_harness_is_refused(field, value, message):
    with pytest.raises(UserError) as error:
        Task.from_dict(put(harness_record(), field, value))
    assert message in str(error.value)


def test_what_counts_as_with_the_gold_patch_needs_one():
    record = make_task().to_dict()
    record["oracle"] |= {"missing": "as_gold", "gold_patch": " \n"}
    with pytest.raises(UserError, match=r"gold_patch is missing: missing='as_gold' looks at what its log names"):
        Task.from_dict(record)


def test_a_task_that_is_judged_by_calls_has_its_files():
    record = make_task().to_dict()
    record["oracle"] = {"kind": "calls", "fail_to_pass": ["tests/test_a.py::test_b"], "command": "python3 run.py"}
    with pytest.raises(UserError, match=r"must have 'tests/test_a\.py', which holds tests"):
        Task.from_dict(record)
    record["workspace"]["image"] = {"name": "i"}
    with pytest.raises(UserError, match=r"workspace\.image must be null for an oracle of kind 'calls'"):
        Task.from_dict(record)


def test_the_task_of_the_docs_is_one_that_its_gold_patch_solves():
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    task = Task.from_dict(orjson.loads(page.partition("```json\n")[2].partition("```")[0]))
    files = apply_patch(task.workspace.files, task.oracle.gold_patch)
    for content, passes in ((task.workspace.files["shop.py"], False), (files["shop.py"].decode(), True)):
        names: dict = {}
        exec(content, names)
        assert (names["total"]([10, 20], 5) == 25) is passes
