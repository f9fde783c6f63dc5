"""The files of tasks that commands write: what `data.train` and every command that reads a task set take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson

from slime_swe import files
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError


def prepare(path: Path, option: str) -> None:
    """Make its folder, before the work whose result it holds. Raises `UserError` where it can't be such a file."""
    if path.suffix != ".jsonl":
        raise UserError(f"{option} {path} must end with .jsonl, by which `data.train` knows a file of tasks")
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write the tasks whole, or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with files.writing(path):
        with temporary.open("wb") as file:
            file.writelines(orjson.dumps(task.to_dict()) + b"\n" for task in tasks)
        temporary.replace(path)
