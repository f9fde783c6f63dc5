"""Find tasks by name: `SOURCE:SPLIT`, or a file of tasks, and after a `?` the options that select a part
(`selection.py`), and `registry`, from which their images are taken (`mirrors.py`).

    synthetic:train
    specification:toolz
    swebench:verified?repo=django/django&before=2022-01-01
    quixbugs:python?folder=/data/QuixBugs
    path/to/tasks.jsonl?ids=path/to/ids.txt
    my_module.load:train
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from slime_swe.data_sources.corpora import CORPORA, swebench
from slime_swe.data_sources.corpora.corpus import FILE_KINDS, file_records, first_few
from slime_swe.data_sources.mirrors import mirrored
from slime_swe.data_sources.selection import FILTERS, select
from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_registered
from slime_swe.errors import UserError, unknown

OPTIONS = ("folder", "id", "ids", "not_id", *FILTERS, "part", "by", "seed", "limit", "expect", "registry")
# Short name -> dotted path of `load(split: str) -> list[Task]`; a corpus's also takes the folder that holds it. A name
# that holds a dot is taken for such a path.
SOURCES = {
    "synthetic": "slime_swe.data_sources.synthetic.tasks.load",
    "humaneval": "slime_swe.data_sources.humaneval.tasks.load",
    "diff": "slime_swe.data_sources.diff.load",
    "vulnerability": "slime_swe.data_sources.vulnerability.generated.load",
    "arc": "slime_swe.data_sources.arc.tasks.load",
    "specification": "slime_swe.data_sources.specification.tasks.load",
} | {name: c.loader for name, c in CORPORA.items()}


def load_tasks(spec: str) -> list[Task]:
    """The tasks that `spec` names, in the source's own order, ids unique and at least one task.

    Raises `UserError` for an unknown name, a selection without tasks, or a malformed record (file and line named).
    """
    return counted(spec)[0]


def counted(spec: str) -> tuple[list[Task], int]:
    """The same, and of how many tasks they were chosen by what follows the `?`."""
    parsed = parse(spec)
    tasks = _read_file(parsed) if parsed.file else _call_source(parsed)
    if not tasks:
        raise UserError(f"task set {spec!r} is empty")
    _require_unique_ids(tasks, spec)
    chosen = select(tasks, parsed.options, spec)
    if not chosen:
        raise UserError(f"task set {spec!r} is empty: what follows the ? leaves none of its {len(tasks)} tasks")
    if registry := parsed.options.get("registry"):
        chosen = [mirrored(task, registry) for task in chosen]
    return chosen, len(tasks)


def absolute(spec: str) -> str:
    """The same task set by absolute paths, for processes started elsewhere; a name of another form as it is."""
    try:
        parsed = parse(spec)
    except UserError:
        return spec
    options = dict(parsed.options)
    if parsed.source in CORPORA:
        options.setdefault("folder", str(CORPORA[parsed.source].folder(None)))
    options |= {name: _absolute(options[name]) for name in ("folder", "ids") if name in options}
    return _written(_absolute(parsed.file) if parsed.file else f"{parsed.source}:{parsed.split}", options)


def with_options(spec: str, options: Mapping[str, str]) -> str:
    """The same task set with these options, but for those that it gives itself; a name of another form as it is."""
    try:
        parsed = parse(spec)
    except UserError:
        return spec
    return _written(spec.partition("?")[0], {**options, **parsed.options})


def with_ids(spec: str, path: str) -> str:
    """The same task set, of which the list of ids at `path` is taken in place of the ids that it names itself. Raises
    `UserError` for a name of another form."""
    parsed = parse(spec)
    kept = {name: value for name, value in parsed.options.items() if name not in ("id", "ids", "expect")}
    return _written(spec.partition("?")[0], {**kept, "ids": path})


def _written(name: str, options: Mapping[str, str]) -> str:
    query = "&".join(f"{option}={_quoted(value)}" for option, value in options.items())
    return f"{name}?{query}" if query else name


def _require_unique_ids(tasks: list[Task], spec: str) -> None:
    several = [repr(name) for name, count in Counter(task.id for task in tasks).items() if count > 1]
    if several:
        named = first_few(several, "ids", ", ")
        raise UserError(f"task set {spec!r}: several tasks have the same id, and ids must be unique: {named}")


def _call_source(spec: Spec) -> list[Task]:
    if spec.source not in CORPORA and "folder" in spec.options:
        raise UserError(f"task set {spec.text!r}: only a corpus has a folder ({', '.join(CORPORA)})")
    load = load_registered(spec.source, SOURCES, f"task set {spec.text!r}")
    folder = spec.options.get("folder")
    tasks: Any = load(spec.split, Path(folder) if folder else None) if spec.source in CORPORA else load(spec.split)
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, Task) for task in tasks):
        given = [type(task).__name__ for task in tasks] if isinstance(tasks, list | tuple) else type(tasks).__name__
        raise UserError(f"task set {spec.text!r}: {spec.source} must return a list of Task, got {str(given)[:80]}")
    return list(tasks)


def _read_file(spec: Spec) -> list[Task]:
    if "folder" in spec.options:
        raise UserError(f"task set {spec.text!r}: a file has no folder")
    path = Path(spec.file).expanduser()
    return file_records(path, partial(_task, path))


def _task(path: Path, record: Any) -> Task:
    """Of our own record, or of one of SWE-bench's, which have an `instance_id`."""
    if isinstance(record, dict) and "instance_id" in record and "id" not in record:
        return swebench.task_of(record, str(record.get("split") or "file"), source=path.stem)
    return Task.from_dict(_with_source(record, path))


def _with_source(record: Any, path: Path) -> Any:
    """A record that does not say where it is from is from its file."""
    return {"source": path.stem, "split": "file", **record} if isinstance(record, dict) else record


@dataclass(frozen=True)
class Spec:
    """The parts of a task set's name. `file` is empty where a source is named, else `source` and `split` are."""

    text: str
    file: str = ""
    source: str = ""
    split: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> Spec:
    """Raises `UserError` for a name that is not of this form, or has an option that there is not."""
    name, _, query = text.partition("?")
    options = _options(text, query)
    if name.endswith(FILE_KINDS):
        return Spec(text, file=name, options=options)
    source, colon, split = name.partition(":")
    if not colon or not split:
        splits = CORPORA[source].splits if source in CORPORA else ["split"]
        written = " or ".join(f"{source or 'source'}:{one}" for one in splits)
        raise UserError(f"task set {text!r} names no split: write {written}, or a path to a .jsonl")
    return Spec(text, source=source, split=split, options=options)


def _options(text: str, query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise UserError(f"task set {text!r}: after the ? come options as name=value, joined by &") from error
    for name, value in pairs:
        if name not in OPTIONS:
            raise UserError(unknown(f"option of task set {text!r}", name, OPTIONS))
        if not value:
            raise UserError(f"task set {text!r}: the option {name} has no value")
    if len(dict(pairs)) < len(pairs):
        raise UserError(f"task set {text!r} gives an option twice; several ids or repos are joined by commas")
    return dict(pairs)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _quoted(value: str) -> str:
    return value.replace("%", "%25").replace("&", "%26")
