"""Files of tasks with faults: each record is a task, or a mistake that is named in a few lines."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from tests.data_sources.tasks import GOLD, make_task
from tests.effort import FACTOR, assert_linear
from tests.mutated_json import mutated

SWEBENCH = {
    "instance_id": "a__b-1", "repo": "a/b", "base_commit": "0", "version": "1.0", "problem_statement": "wrong",
    "image": "a", "eval_script": "#!/bin/bash\ncd /testbed\n: '>>>>> Start Test Output'\n: '>>>>> End Test Output'\n",
    "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "patch": GOLD, "test_patch": GOLD,
    "FAIL_TO_PASS": '["t.py::a"]', "PASS_TO_PASS": ["t.py::b"], "image_assets": "{}", "created_at": "2024-01-01",
}  # fmt: skip


def records() -> list[Any]:
    """One of each kind."""
    ours = make_task().to_dict()
    oracle = {key: value for key, value in ours["oracle"].items() if key not in ("runner", "hidden", "missing")}
    image = {"files": {"a.py": "x"}, "image": {"name": "a", "folder": "/testbed", "setup": ""}}
    harness = {**oracle, "kind": "harness", "eval_script": "x", "log_parser": "x", "repo": "a/b", "version": "1"}
    held_out = "from calc import add\ndef test_a():\n    assert add(1, 2) == 3\n"
    calls = {**oracle, "kind": "calls", "held_out_tests": held_out}
    return [ours, {**ours, "oracle": calls}, {**ours, "oracle": harness, "workspace": image}, SWEBENCH]


@pytest.mark.parametrize(
    "count", [500, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("mutated files of tasks")])]
)
@pytest.mark.timeout(900)
def test_a_mutated_record_is_a_task_or_a_mistake_that_is_named(tmp_path: Path, count: int) -> None:
    dice, honest, taken = random.Random(count), records(), 0
    for number in range(count):
        file = tmp_path / dice.choice(["tasks.jsonl", "tasks.json"])
        body = mutated(honest[number % len(honest)], dice)
        file.write_bytes(body if file.suffix == ".jsonl" else b"[" + body + b"]")
        try:
            tasks = load_tasks(str(file))
        except UserError as error:
            assert len(str(error)) < 5_000
        else:
            taken += 1
            assert [Task.from_dict(task.to_dict()) for task in tasks] == tasks
    assert count // 20 < taken < count


def test_very_many_mistakes_are_named_in_a_few_lines(tmp_path: Path) -> None:
    record = {**make_task().to_dict(), **{f"key {number}": 0 for number in range(50_000)}, "x" * 100_000: 1}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"key 19 is not a field .* and more$") as refused:
        load_tasks(str(tmp_path / "tasks.jsonl"))
    assert len(str(refused.value)) < 5_000


def many(size: int) -> dict[str, list[Any]]:
    """Records of about so many characters, of each kind."""
    ours, count = make_task().to_dict(), size // 20
    wanted = [f"t.py::{number}" for number in range(count)]
    return {
        "mistakes": [{**ours, **{f"key {number}": 0 for number in range(count)}}],
        "a long name": [{**ours, "x" * size: 0}],
        "files": [{**ours, "workspace": {"files": {f"{number}/a.py": "" for number in range(count)}}}],
        "a deep path": [{**ours, "workspace": {"files": {"a/" * count + "a.py": ""}}}],
        "tests": [{**ours, "oracle": {**ours["oracle"], "fail_to_pass": wanted}}],
        "what is no test": [{**ours, "oracle": {**ours["oracle"], "fail_to_pass": [0] * count}}],
        "a long text": [{**ours, "statement": "x " * size}],
        "other values": [{**ours, "metadata": {str(number): [{}] * 3 for number in range(count)}}],
        "wrong records": [{**ours, "statment": ""}] * (size // 2_000),
        "right records": [{**ours, "id": f"a{number}"} for number in range(size // 2_000)],
        "SWE-bench's tests": [{**SWEBENCH, "PASS_TO_PASS": wanted}],
    }


@pytest.mark.parametrize("kind", many(0))
def test_a_file_is_read_or_refused_in_time_that_grows_with_it(tmp_path: Path, kind: str) -> None:
    size = 100_000
    for length in (size, FACTOR * size):
        lines = map(json.dumps, many(length)[kind])
        (tmp_path / f"{length}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def read(length: int) -> None:
        with contextlib.suppress(UserError):
            load_tasks(str(tmp_path / f"{length}.jsonl"))

    assert_linear(read, size, kind)


def test_the_records_are_tasks_before_they_are_mutated(tmp_path: Path) -> None:
    for record in records():
        (tmp_path / "tasks.jsonl").write_text(json.dumps(record))
        assert len(load_tasks(str(tmp_path / "tasks.jsonl"))) == 1
