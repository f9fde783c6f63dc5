"""Find tasks by name: `embedded:train`, `swebench:verified?repo=django/django`, a file of tasks, or any
`module.function:split`. What may follow the `?` is in `data_sources/spec.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_sources import spec as specs
from data_sources import swebench
from data_sources.arguments import unknown
from data_sources.corpora import CORPORA
from data_sources.reader import TaskError
from data_sources.records import file_records
from data_sources.selection import select
from data_sources.spec import RegistryError as RegistryError
from data_sources.spec import Spec
from data_sources.task import Task

# Short name -> dotted path of `load(split: str) -> list[Task]`; a corpus's also takes the folder that holds it. A name
# that holds a dot is taken for such a path.
SOURCES = {"embedded": "data_sources.embedded.tasks.load"} | {name: c.loader for name, c in CORPORA.items()}


def load_tasks(spec: str) -> list[Task]:
    """The tasks that `spec` names, in the source's own order, ids unique and at least one task.

    Raises `RegistryError` for a name that leads nowhere or a selection that leaves nothing, and `TaskError` for a
    malformed record (file and line named).
    """
    parsed = specs.parse(spec)
    tasks = list(_read_file(parsed)) if parsed.file else _call_source(parsed)
    if not tasks:
        raise RegistryError(f"task set {spec!r} is empty")
    _require_unique_ids(tasks, spec)
    chosen = select(tasks, parsed.options, spec)
    if not chosen:
        raise RegistryError(f"task set {spec!r} is empty: what follows the ? leaves none of its {len(tasks)} tasks")
    return chosen


def absolute(spec: str) -> str:
    """The same task set by absolute paths, for processes started elsewhere; a name of another form as it is."""
    try:
        parsed = specs.parse(spec)
    except RegistryError:
        return spec
    if parsed.source in CORPORA and "folder" not in parsed.options:
        folder = str(CORPORA[parsed.source].folder(None))
        parsed = replace(parsed, options={**parsed.options, "folder": folder})
    return str(specs.absolute(parsed))


def _require_unique_ids(tasks: list[Task], spec: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"task set {spec!r}: the id {task.id!r} occurs twice; ids must be unique")
        seen.add(task.id)


def _call_source(spec: Spec) -> list[Task]:
    if spec.source not in SOURCES and "." not in spec.source:
        raise RegistryError(unknown(f"task set {spec.text!r}", spec.source, SOURCES))
    load = _import(SOURCES.get(spec.source, spec.source), spec.text)
    if spec.source in CORPORA:
        folder = spec.options.get("folder")
        return list(load(spec.split, Path(folder) if folder else None))
    if "folder" in spec.options:
        raise RegistryError(f"task set {spec.text!r}: only a corpus has a folder ({', '.join(CORPORA)})")
    return list(load(spec.split))


def _import(path: str, spec: str) -> Any:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise RegistryError(f"task set {spec!r}: no module {error.name!r} (from {path!r})") from error
    except AttributeError as error:
        raise RegistryError(f"task set {spec!r}: module {module!r} has no {attribute!r}") from error


def _read_file(spec: Spec) -> Iterator[Task]:
    """The tasks of a file: our own records, or those of SWE-bench, which have an `instance_id`."""
    if "folder" in spec.options:
        raise RegistryError(f"task set {spec.text!r}: a file has no folder")
    path = Path(spec.file).expanduser()
    for where, record in file_records(path):
        try:
            if isinstance(record, dict) and "instance_id" in record and "id" not in record:
                yield swebench.task_of(record, source=path.stem, split=str(record.get("split") or "file"))
            else:
                yield Task.from_dict(record)
        except TaskError as error:
            raise TaskError(f"{where}: {error}") from error
