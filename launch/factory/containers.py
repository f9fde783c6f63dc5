"""The tasks in the formats of others, whose containers hold what `sandbox=local` has without one: Harbor's folders, and
SWE-bench's records with a Dockerfile for each.

Harbor's layout: https://harborframework.com/docs/tasks. SWE-bench's fields: those that swebench 5 reads.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from slime_swe import files
from slime_swe.data_sources.corpora.eval_prologue import END, START
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError

REGISTRY = "slime-swe"  # what images are called: nothing is pushed there
_DOCKERFILE = """\
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir 'pytest>=8.3,<9.2'
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
COPY repository /testbed
WORKDIR /testbed
RUN git init -q && git add -A && git -c user.name=task -c user.email=task@localhost commit -qm base
"""
_TEST_SH = """\
#!/bin/bash
# Puts the tests back, runs them, and writes 1 or 0 for the task as a whole.
here=$(cd "$(dirname "$0")" && pwd)
logs=${LOGS_FOLDER:-/logs/verifier}
cd "${REPOSITORY:-/testbed}" || exit 1
mkdir -p "$logs"
cp -R "$here/protected/." .
%s > "$logs/tests.log" 2>&1
python3 "$here/verdict.py" "$here/expected.json" "$logs/tests.log" > "$logs/reward.txt"
"""
_SOLVE_SH = """\
#!/bin/bash
set -e
here=$(cd "$(dirname "$0")" && pwd)
cd "${REPOSITORY:-/testbed}"
git apply "$here/gold.patch"
"""
_TASK_TOML = """\
version = "1.0"

[metadata]
author_name = "slime-swe make-tasks"
author_email = "none"
difficulty = %s
category = "programming"
tags = %s

[verifier]
timeout_sec = %s

[agent]
timeout_sec = 1800.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 4096
"""


def write_harbor(tasks: Sequence[Task], folder: Path) -> None:
    """Write a folder for each task into a new folder. Raises `UserError` where that is there already."""
    with _new(folder) as made:
        for task in tasks:
            place = made / _slug(task.id)
            write_image(task, place / "environment")
            tests = {
                "expected.json": json.dumps([*task.oracle.fail_to_pass, *task.oracle.pass_to_pass], indent=1),
                "verdict.py": (resources.files("slime_swe.launch.factory") / "verdict.py").read_text(),
                "test.sh": _TEST_SH % task.oracle.command,
                **{f"protected/{path}": task.workspace.files[path] for path in task.oracle.protected},
            }
            level, tags = str(task.metadata["difficulty"]), [task.source, str(task.metadata["kind"])]
            limit = task.oracle.timeout_seconds + 60
            about = _TASK_TOML % (json.dumps(level), json.dumps(tags), limit)
            _write(place, {"instruction.md": task.statement, "task.toml": about})
            _write(place / "tests", tests)
            _write(place / "solution", {"solve.sh": _SOLVE_SH, "gold.patch": task.oracle.gold_patch})


def write_swebench(tasks: Sequence[Task], folder: Path) -> None:
    """Write `records.jsonl` and, in `images/ID`, what `docker build -t slime-swe/ID` takes, into a new folder. Raises
    `UserError` where that is there already."""
    with _new(folder) as made:
        for task in tasks:
            write_image(task, made / "images" / _slug(task.id))
        lines = [orjson.dumps(record_of(task)) + b"\n" for task in tasks]
        (made / "records.jsonl").write_bytes(b"".join(lines))


def record_of(task: Task) -> dict[str, Any]:
    """Return a task in SWE-bench's fields. Its image has a copy of the tests outside the repository, to restore."""
    script = ["#!/bin/bash", "cd /testbed", "cp -R /opt/protected/. .", f"echo '{START}'", task.oracle.command]
    return {
        "instance_id": task.id,
        "repo": task.metadata["repo"],
        "base_commit": "HEAD",
        "version": task.metadata["version"],
        "problem_statement": task.statement,
        "patch": task.oracle.gold_patch,
        "test_patch": "",
        "FAIL_TO_PASS": list(task.oracle.fail_to_pass),
        "PASS_TO_PASS": list(task.oracle.pass_to_pass),
        "image": f"{REGISTRY}/{_slug(task.id)}:latest",
        "eval_script": "\n".join([*script, f"echo '{END}'", ""]),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "difficulty": task.metadata["difficulty"],
    }


def write_image(task: Task, folder: Path) -> None:
    """Write the folder from which `docker build` makes the task's image."""
    _write(folder / "repository", task.workspace.files)
    _write(folder / "protected", {path: task.workspace.files[path] for path in task.oracle.protected})
    _write(folder, {"Dockerfile": _DOCKERFILE + "COPY protected /opt/protected\n"})


def _write(folder: Path, texts: Any) -> None:
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")
        if place.suffix == ".sh":
            place.chmod(0o755)


def _slug(name: str) -> str:
    """Spell a name as Docker and Harbor take it."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower())


class _new:
    """A new folder that is there whole or not at all. Raises `UserError` where it is there already."""

    def __init__(self, folder: Path) -> None:
        if folder.exists():
            raise UserError(f"{folder} is there already: give a new folder, or remove it")
        self._folder = folder
        self._partial = folder.with_name(f".{folder.name}.partial")

    def __enter__(self) -> Path:
        with files.writing(self._folder):
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
        return self._partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._partial.rename(self._folder)
        else:
            shutil.rmtree(self._partial, ignore_errors=True)
