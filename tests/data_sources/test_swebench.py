"""SWE-bench's records as tasks."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.corpora.eval_prologue import END, START, setup_of
from slime_swe.data_sources.corpora.swebench import task_of
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import HarnessOracle, Image
from slime_swe.errors import UserError
from slime_swe.patches import make_patch

FILE = Path(__file__).parent / "fixtures" / "swebench" / "verified.jsonl"


def record(**changes):
    return orjson.loads(FILE.read_bytes().splitlines()[0]) | changes


def test_what_becomes_of_a_record():
    task = task_of(record(), source="swebench", split="verified")
    assert isinstance(task.oracle, HarnessOracle)
    assert task.workspace.image == Image(
        "example/sweb.eval.django__django-1", "/testbed", setup_of(record()["eval_script"])
    )
    assert "conda activate testbed" in task.workspace.image.setup
    assert task.oracle.protected == ("tests/test_new.py", "tests/test_text.py")
    assert task.oracle.fail_to_pass == ("tests/test_text.py::test_shout",)
    assert (task.oracle.repo, task.oracle.version, task.oracle.log_parser) == (
        "django/django",
        "3.0",
        "parse_log_pytest",
    )
    assert task.oracle.eval_script == record()["eval_script"]
    assert task.metadata["created_at"] == "2019-03-01T12:00:00Z" and task.metadata["base_commit"] == "1" * 40


def test_a_local_file_in_this_format_needs_no_name_of_a_corpus():
    tasks = load_tasks(f"{FILE}?repo=django/django")
    assert [task.id for task in tasks] == ["django__django-1", "django__django-2"]
    assert tasks[0].source == "verified" and tasks[0].split == "file"


def test_test_names_are_a_list_or_the_json_of_one():
    names = ["a::b[x y]", "ünïcode (suite)"]
    as_list = task_of(record(FAIL_TO_PASS=names, PASS_TO_PASS=[]), source="s", split="s")
    as_json = task_of(record(FAIL_TO_PASS=orjson.dumps(names).decode(), PASS_TO_PASS="[]"), source="s", split="s")
    assert as_list.oracle.fail_to_pass == as_json.oracle.fail_to_pass == tuple(names)


def test_no_images_are_no_fault():
    for assets in ("", "{}", "null", {}, '{"patch": [], "test_patch": null}', {"patch": []}):
        assert task_of(record(image_assets=assets), source="s", split="s").id


def test_odd_names_of_test_files_are_protected_as_they_are():
    names = ("my tests/test größe ü.py", 'a "b"/t\tx.py')
    patch = make_patch(dict.fromkeys(names, "1\n"), dict.fromkeys(names, "2\n"))
    quoted = 'diff --git "a/tests/t\\303\\251.py" "b/tests/t\\303\\251.py"\nnew file mode 100644\n'
    task = task_of(record(test_patch=patch + quoted), source="s", split="s")
    assert set(task.oracle.protected) == {*names, "tests/té.py"}


def test_the_folder_and_the_environment_are_those_of_the_script():
    script = "cd /src/app\nexport A=1\n: '>>>>> Start Test Output'\nconda activate late\n: '>>>>> End Test Output'\n"
    task = task_of(record(eval_script=script), source="s", split="s")
    assert task.workspace.image is not None
    assert task.workspace.image.folder == "/src/app"
    assert "export A=1" in task.workspace.image.setup and "conda activate late" not in task.workspace.image.setup


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_script": None, "image": None}, "has no image, eval_script: it is of SWE-bench's format from before"),
        ({"eval_script": f"cd $HERE\n{START}\n{END}\n"}, r"eval_script must change to a folder .*, got cd \$HERE"),
        ({"eval_script": "pytest"}, "eval_script must be one that prints '>>>>> Start Test Output'"),
        ({"eval_type": "some"}, "eval_type: unknown name 'some'. Available: fail_only, pass_and_fail"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS must be at least one test"),
        ({"FAIL_TO_PASS": "[1]"}, "FAIL_TO_PASS must be a list of strings, or its JSON"),
        ({"PASS_TO_PASS": "a::b"}, "PASS_TO_PASS must be a list of strings, or its JSON"),
        ({"patch": None}, "patch is missing"),
        ({"instance_id": 3}, "task 3: instance_id must be str"),
        ({"patch": None, "repo": 1}, "repo must be str, got 1; patch is missing"),
        ({"test_patch": "@@ -1 +1 @@\n"}, "test_patch: line 0 of the patch: a hunk without the file"),
        ({"image_assets": {"patch": ["https://x/a.png"]}}, "image_assets are not supported"),
        ({"image_assets": '{"patch": null, "problem_statement": ["assets/a.png"]}'}, "image_assets are not supported"),
        ({"image_assets": "assets/a.png"}, "image_assets are not supported"),
    ],
)
def test_a_record_that_is_wrong(changes, message):
    with pytest.raises(UserError, match=message):
        task_of(record(**changes), source="s", split="s")


def test_a_wrong_record_of_a_file_is_named(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(orjson.dumps(record()) + b"\n" + orjson.dumps(record(image=None)))
    with pytest.raises(UserError, match=r"mine.jsonl, line 2: task 'django__django-1' has no image"):
        load_tasks(str(tmp_path / "mine.jsonl"))
