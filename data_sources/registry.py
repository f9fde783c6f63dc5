"""Find tasks by name: `embedded:train`, a `.jsonl` file of tasks, or any `module.function:split`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from data_sources.arguments import unknown
from data_sources.reader import TaskError
from data_sources.task import Task

# Short name -> dotted path of `load(split: str) -> list[Task]`. A name that holds a dot is taken for such a path.
SOURCES = {"embedded": "data_sources.embedded.tasks.load"}


class RegistryError(ValueError):
    """No such task set; the message says what there is."""


def load_tasks(spec: str) -> list[Task]:
    """The tasks that `spec` names, in the source's own order, ids unique and at least one task.

    Raises `RegistryError` for a name that leads nowhere and `TaskError` for a malformed record (file and line named).
    """
    tasks = _read_file(Path(spec)) if spec.endswith(".jsonl") else _call_source(spec)
    if not tasks:
        raise RegistryError(f"task set {spec!r} is empty")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"task set {spec!r}: the id {task.id!r} occurs twice; ids must be unique")
        seen.add(task.id)
    return tasks


def _call_source(spec: str) -> list[Task]:
    name, colon, split = spec.partition(":")
    if not colon or not split:
        raise RegistryError(f"task set {spec!r} names no split: write {name or 'source'}:split, or a path to a .jsonl")
    if name not in SOURCES and "." not in name:
        raise RegistryError(unknown(f"task set {spec!r}", name, SOURCES))
    return list(_import(SOURCES.get(name, name), spec)(split))


def _import(path: str, spec: str) -> Any:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise RegistryError(f"task set {spec!r}: no module {error.name!r} (from {path!r})") from error
    except AttributeError as error:
        raise RegistryError(f"task set {spec!r}: module {module!r} has no {attribute!r}") from error


def _read_file(path: Path) -> list[Task]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RegistryError(f"can't read the task file {path}: {error.strerror}") from error
    return list(_parse_lines(path, lines))


def _parse_lines(path: Path, lines: list[bytes]) -> Iterator[Task]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Task.from_dict(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise TaskError(f"{path}, line {number}: not a JSON object: {error}") from error
        except TaskError as error:
            raise TaskError(f"{path}, line {number}: {error}") from error
