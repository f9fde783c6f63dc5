"""Files of tasks with faults: each record is a task, or a mistake that is named in a few lines, and soon."""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from tests.data_sources.tasks import GOLD, make_task
from tests.mutated_json import mutated
from tests.slowness import slowness

SWEBENCH = {
    "instance_id": "a__b-1", "repo": "a/b", "base_commit": "0", "version": "1.0", "problem_statement": "wrong",
    "image": "a", "eval_script": "#!/bin/bash\ncd /testbed\n: '>>>>> Start Test Output'\n: '>>>>> End Test Output'\n",
    "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "patch": GOLD, "test_patch": GOLD,
    "FAIL_TO_PASS": '["t.py::a"]', "PASS_TO_PASS": ["t.py::b"], "image_assets": "{}", "created_at": "2024-01-01",
}  # fmt: skip


def records() -> list[Any]:
    """One of each kind."""
    ours = make_task().to_dict()
    oracle = {key: value for key, value in ours["oracle"].items() if key not in ("runner", "hidden")}
    image = {"files": {"a.py": "x"}, "image": {"name": "a", "folder": "/testbed", "setup": ""}}
    harness = {**oracle, "kind": "harness", "eval_script": "x", "log_parser": "x", "repo": "a/b", "version": "1"}
    held_out = "from calc import add\ndef test_a():\n    assert add(1, 2) == 3\n"
    calls = {**oracle, "kind": "calls", "held_out_tests": held_out}
    return [ours, {**ours, "oracle": calls}, {**ours, "oracle": harness, "workspace": image}, SWEBENCH]


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.matrix("mutated files of tasks")])]
)
@pytest.mark.timeout(900)
def test_a_mutated_record_is_a_task_or_a_mistake_that_is_named(tmp_path: Path, count: int) -> None:
    dice, honest, taken = random.Random(count), records(), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        file = tmp_path / dice.choice(["tasks.jsonl", "tasks.json"])
        body = mutated(honest[number % len(honest)], dice)
        file.write_bytes(body if file.suffix == ".jsonl" else b"[" + body + b"]")
        started = time.thread_time()
        try:
            tasks = load_tasks(str(file))
        except UserError as error:
            assert len(str(error)) < 5_000
        else:
            taken += 1
            assert [Task.from_dict(task.to_dict()) for task in tasks] == tasks
        assert time.thread_time() - started < 0.05 * slowness(), body
    assert count // 20 < taken < count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_very_many_mistakes_are_named_soon_and_in_a_few_lines(tmp_path: Path) -> None:
    record = {**make_task().to_dict(), **{f"key {number}": 0 for number in range(50_000)}, "x" * 100_000: 1}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(record))
    started = time.thread_time()
    with pytest.raises(UserError, match=r"key 19 is not a field .* and more$") as refused:
        load_tasks(str(tmp_path / "tasks.jsonl"))
    assert time.thread_time() - started < 0.05 * slowness()
    assert len(str(refused.value)) < 5_000


def test_the_records_are_tasks_before_they_are_mutated(tmp_path: Path) -> None:
    for record in records():
        (tmp_path / "tasks.jsonl").write_text(json.dumps(record))
        assert len(load_tasks(str(tmp_path / "tasks.jsonl"))) == 1
