"""R2E-Gym: what is read of its records, and its tasks in images that hold the grading tests, as its own do.

The fixture's records were made by R2E-Gym's own models of commits and runs, over the project of `r2e_image`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import HarnessOracle, Task
from slime_swe.errors import UserError
from slime_swe.patches import apply_patch, make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import Sandbox, SandboxError
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources import r2e_image
from tests.rewards.swebench_here import harness_python, need_docker

FIXTURE = Path(__file__).parent / "fixtures" / "r2egym"
FAILING = ("r2e_tests/test_1.py::TestCount::test_spaces", "r2e_tests/test_1.py::test_no_word")
PASSING = ("r2e_tests/test_1.py::TestCount::test_two", "r2e_tests/test_1.py::test_join[-]",
           "r2e_tests/test_1.py::test_join[")  # fmt: skip
FORGED = "".join(f"echo 'PASSED {test}'\n" for test in (*FAILING, *PASSING))
# What an agent can look at: names, contents outside the kernel's own folders, and all that Git has.
LOOK = f"""\
find / -xdev \\( -name 'r2e_tests*' -o -name 'test_1.py' \\)
grep -rlsI --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev '{r2e_image.SECRET}' /
git cat-file --batch-all-objects --batch | grep -a '{r2e_image.SECRET}'
git log --all --format=%s
"""


def tasks() -> list[Task]:
    return load_tasks(f"r2egym:subset?folder={FIXTURE}")


def with_change(tmp_path: Path, change: dict[str, Any]) -> str:
    """A task set of the first record with other fields."""
    record = orjson.loads((FIXTURE / "subset.jsonl").read_bytes().splitlines()[0])
    (tmp_path / "subset.jsonl").write_bytes(orjson.dumps(record | change))
    return f"r2egym:subset?folder={tmp_path}"


def opened(field: str) -> dict[str, Any]:
    record = orjson.loads((FIXTURE / "subset.jsonl").read_bytes().splitlines()[0])
    return dict(orjson.loads(record[field]))


def new_file(path: str, *lines: str) -> str:
    added = "".join(f"+{line}\n" for line in lines)
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{added}"


def test_the_tests_are_those_that_the_list_and_the_recorded_runs_agree_on():
    by_pytest, by_unittest = tasks()
    assert isinstance(by_pytest.oracle, HarnessOracle)
    assert set(by_pytest.oracle.fail_to_pass) == set(FAILING), "colours are taken off"
    assert set(by_pytest.oracle.pass_to_pass) == set(PASSING), "what fails even when fixed is not asked for"
    assert by_unittest.oracle.fail_to_pass == ("r2e_tests/test_1.py::TestCount::test_spaces",), "modules are files"
    assert by_unittest.oracle.pass_to_pass == ("r2e_tests/test_1.py::TestCount::test_two",)


def test_a_test_that_the_list_says_fails_is_not_asked_for(tmp_path):
    listed = opened("expected_output_json")
    key = next(key for key in listed if "test_no_word" in key)
    change = {"expected_output_json": orjson.dumps(listed | {key: "FAILED"}).decode()}
    (task,) = load_tasks(with_change(tmp_path, change))
    assert task.oracle.fail_to_pass == FAILING[:1] and set(task.oracle.pass_to_pass) == set(PASSING)


def test_a_record_that_shows_no_failing_test_is_left_out(tmp_path):
    runs = opened("execution_result_content")
    runs["old_commit_res_stdout"] = runs["new_commit_res_stdout"]
    with pytest.raises(UserError, match="is empty"):
        load_tasks(with_change(tmp_path, {"execution_result_content": orjson.dumps(runs).decode()}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo_name": "toy"}, "repo_name: unknown name 'toy'.* Available: aiohttp"),
        ({"expected_output_json": "[]"}, "expected_output_json must be the JSON of an object"),
        ({"parsed_commit_content": "{"}, "parsed_commit_content must be the JSON of an object"),
        ({"execution_result_content": "{}"}, "execution_result_content: old_commit_res_stdout is missing; new_commit"),
    ],
)
def test_a_record_that_can_not_be_read(change, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        load_tasks(with_change(tmp_path, change))
    assert f"task 'namanjain12/pyramid_final:{'a1' * 20}'" in str(caught.value)


def test_a_commit_that_is_not_of_the_known_form(tmp_path):
    for files, message in (([{}], "can't be read: KeyError"), ([], "must be a commit that changes a Python file")):
        parsed = opened("parsed_commit_content") | {"file_diffs": files}
        with pytest.raises(UserError, match=message):
            load_tasks(with_change(tmp_path, {"parsed_commit_content": orjson.dumps(parsed).decode()}))


def test_the_gold_patch_is_the_commit_without_what_is_no_python(tmp_path):
    (task, _) = tasks()
    r2e_image.make_history(tmp_path, "pyramid")
    diff = r2e_image.git(tmp_path, "diff", "-p", "HEAD^", "HEAD", "--", "*.py")
    assert task.oracle.gold_patch == f"{diff}\n"
    before = {"toy/words.py": r2e_image.FAULTY, "tests/test_words.py": r2e_image.OLD_TEST}
    assert apply_patch(before, task.oracle.gold_patch)["toy/words.py"] == r2e_image.FIXED.encode()


def test_what_else_a_record_says():
    by_pytest, by_unittest = tasks()
    assert by_pytest.id == f"r2egym-pyramid-{('a1' * 20)[:12]}"
    assert by_pytest.statement == "**Title:** Words are counted wrongly\n\nTwo spaces make a word more."
    assert by_pytest.metadata == {
        "repo": "Pylons/pyramid",
        "fix_commit": "a1" * 20,
        "created_at": "2016-03-01T12:00:00-05:00",
    }, "HASH^ is no commit that others name"
    assert by_unittest.metadata["base_commit"] == "c3" * 20
    assert len(load_tasks(f"r2egym:subset?folder={FIXTURE}&after=2016-01-01&repo=pylons/pyramid")) == 1


def with_image(task: Task, name: str) -> Task:
    assert task.workspace.image is not None
    return dataclasses.replace(
        task,
        workspace=dataclasses.replace(task.workspace, image=dataclasses.replace(task.workspace.image, name=name)),
    )


@contextlib.asynccontextmanager
async def pool(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxPool]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with SandboxPool(backend, concurrency=2) as sandboxes:
        try:
            await sandboxes._backend.start()
        except (UserError, SandboxError) as error:
            pytest.skip(f"{backend} sandboxes do not work here: {error}")
        yield sandboxes


def image(backend: str, folder: Path, kind: str, host_base: Callable[[Path], Path]) -> str:
    try:
        if backend == "docker":
            need_docker()
            return r2e_image.build(folder, kind)
        return r2e_image.make_folder(folder, kind, host_base)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "number"),
    [
        ("overlay", 0),
        *(
            pytest.param(*row, marks=pytest.mark.extended("sandboxes with images"))
            for row in (("overlay", 1), ("docker", 0))
        ),
    ],
)
async def test_a_task_in_its_image(backend, number, host_base, tmp_path, monkeypatch):
    settings = GradingSettings(harness_python=harness_python())
    task = tasks()[number]
    kind = ("pyramid", "tornado")[number]
    task = with_image(task, await asyncio.to_thread(image, backend, tmp_path / "image", kind, host_base))
    async with pool(backend, tmp_path, monkeypatch) as sandboxes:
        async with sandboxes.open({}, image=task.workspace.image) as sandbox:
            patch = await _played(sandbox)
        await _graded(task, patch, sandboxes, settings)


async def _played(sandbox: Sandbox) -> str:
    """What an agent finds, and the patch that it leaves."""
    assert (await sandbox.exec(LOOK)).output == "words\n"
    assert (await sandbox.exec("command -v python")).output == "/testbed/.venv/bin/python\n"
    assert await sandbox.diff() == "", "that the tests are taken away is no change of the agent's"
    await sandbox.write_file("toy/words.py", r2e_image.FIXED.encode())
    await sandbox.write_file("r2e_tests/test_mine.py", b"def test_mine():\n    assert True\n")
    await sandbox.write_file("run_tests.sh", b"python -m pytest r2e_tests\n")
    assert (await sandbox.exec("bash run_tests.sh")).exit_code == 0
    await sandbox.exec("kill -9 $$")  # the next command is run by a new shell, in which the setup is run again
    assert (await sandbox.exec("cat r2e_tests/test_mine.py && [ ! -e /r2e_tests ] && command -v python")).output == (
        "def test_mine():\n    assert True\n/testbed/.venv/bin/python\n"
    )
    return await sandbox.diff()


async def _graded(task: Task, patch: str, sandboxes: SandboxPool, settings: GradingSettings) -> None:
    """Each on its merit: what the agent did beside its fix is put back."""

    async def score(text: str) -> Score:
        return await grade(task, text, sandboxes, settings)

    every = {*task.oracle.fail_to_pass, *task.oracle.pass_to_pass}
    gold = await score(task.oracle.gold_patch)
    assert gold.solved and set(gold.evidence["tests"]) == every, gold.evidence
    assert gold.evidence["witness"]["values"] > 0, "the control has found the tests"
    played = await score(patch)
    assert played.solved, played.evidence
    assert set(played.evidence["ignored_paths"]) == {"r2e_tests/test_mine.py", "run_tests.sh"}
    empty = await score("")
    assert not empty.solved and empty.evidence["outcome"] == "empty_patch"
    kept = {"run_tests.sh": r2e_image.KINDS[task.oracle.repo.rpartition("/")[2]][1].encode()}
    forging = make_patch(kept, {"run_tests.sh": f"echo short test summary info\n{FORGED}".encode()})
    forging += new_file(".venv/lib/forged.py", "x = 1") + new_file("r2e_tests/conftest.py", "import os")
    wrong = await score(forging + new_file("toy/more.py", "WORDS = 1"))
    assert not wrong.solved, wrong.evidence
    assert {name for name, passed in wrong.evidence["tests"].items() if passed} == set(task.oracle.pass_to_pass)
    assert set(wrong.evidence["ignored_paths"]) == {"run_tests.sh", ".venv/lib/forged.py", "r2e_tests/conftest.py"}
