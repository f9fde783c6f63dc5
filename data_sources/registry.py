"""Find tasks by name: `SOURCE:SPLIT`, or a file of tasks, and after a `?` the options that select a part (`select`),
and `registry`, from which their images are taken (`mirrored`).

    synthetic:train
    specification:toolz
    swebench:verified?repo=django/django&before=2022-01-01
    quixbugs:python?folder=/data/QuixBugs
    path/to/tasks.jsonl?ids=path/to/ids.txt
    my_module.load:train

A file of tasks is read here, and written (`write_tasks`).
"""

from __future__ import annotations

import hashlib
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import orjson

from slime_swe import files
from slime_swe.data_sources.corpora import CORPORA, swebench
from slime_swe.data_sources.corpora.corpus import FILE_KINDS, file_records, first_few
from slime_swe.data_sources.task import TOGETHER, Task
from slime_swe.dotted import load_registered
from slime_swe.errors import UserError, unknown
from slime_swe.patches import changed_lines, paths_of

# `data.filters` may hold these: options that say something of a task, and not which share of a set is taken.
FILTERS = ("repo", "not_repo", "before", "after", "difficulty", "patch_lines", "patch_files", "tests", "statement")
OPTIONS = ("folder", "id", "ids", "not_id", *FILTERS, "part", "by", "seed", "limit", "expect", "registry")
STEPS = "steps"  # whose split is a file
# Short name -> dotted path of `load(split: str) -> list[Task]`; a corpus's also takes the folder that holds it. A name
# that holds a dot is taken for such a path.
SOURCES = {
    "synthetic": "slime_swe.data_sources.synthetic.tasks.load",
    "humaneval": "slime_swe.data_sources.humaneval.load",
    "diff": "slime_swe.data_sources.synthetic.tasks.load_without_tests",
    "vulnerability": "slime_swe.data_sources.vulnerability.load",
    "arc": "slime_swe.data_sources.arc.tasks.load",
    STEPS: "slime_swe.data_sources.steps.load",
    "specification": "slime_swe.data_sources.specification.tasks.load",
} | {name: c.loader for name, c in CORPORA.items()}


def load_tasks(spec: str) -> list[Task]:
    """Return the tasks that `spec` names, in the source's own order, ids unique and at least one task.

    Raises `UserError` for an unknown name, a selection without tasks, or a malformed record (file and line named).
    """
    return counted(spec)[0]


def counted(spec: str) -> tuple[list[Task], int]:
    """Return the tasks that `spec` names, and of how many they were chosen by what follows the `?`."""
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
    """Name the same task set by absolute paths, for processes started elsewhere; return another form as it is."""
    try:
        parsed = parse(spec)
    except UserError:
        return spec
    options = dict(parsed.options)
    if parsed.source in CORPORA:
        options.setdefault("folder", str(CORPORA[parsed.source].folder(None)))
    options |= {name: _absolute(options[name]) for name in ("folder", "ids") if name in options}
    split = _absolute(parsed.split) if parsed.source == STEPS else parsed.split
    return _written(_absolute(parsed.file) if parsed.file else f"{parsed.source}:{split}", options)


def with_options(spec: str, options: Mapping[str, str]) -> str:
    """Name the same task set with these options, but for those that it gives itself; return another form as it is."""
    try:
        parsed = parse(spec)
    except UserError:
        return spec
    return _written(spec.partition("?")[0], {**options, **parsed.options})


def with_ids(spec: str, path: str) -> str:
    """Name the same task set with the list of ids at `path` in place of the ids that it names itself. Raises
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
    """Make a task of our own record, or of one of SWE-bench's, which have an `instance_id`. The source of a record that
    does not say where it is from is the file's name."""
    if not isinstance(record, dict):
        return Task.from_dict(record)
    if "instance_id" in record and "id" not in record:
        return swebench.task_of(record, str(record.get("split") or "file"), source=path.stem)
    return Task.from_dict({"source": path.stem, "split": "file", **record})


def prepare_file(path: Path, option: str) -> None:
    """Make the folder of a file of tasks, before the work whose result it holds. Raises `UserError` where it can't be
    such a file. option: what has named it."""
    if path.suffix != ".jsonl":
        raise UserError(f"{option} {path} must end with .jsonl, by which `data.train` knows a file of tasks")
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write a file of tasks whole, or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with files.writing(path):
        with temporary.open("wb") as file:
            file.writelines(orjson.dumps(task.to_dict()) + b"\n" for task in tasks)
        temporary.replace(path)


@dataclass(frozen=True)
class Spec:
    """The parts of a task set's name. `file` is empty where a source is named, else `source` and `split` are."""

    text: str
    file: str = ""
    source: str = ""
    split: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> Spec:
    """Read a task set's name. Raises `UserError` for one that is not of this form, or has an unknown option."""
    name, _, query = text.partition("?")
    options = _options(text, query)
    source, colon, split = name.partition(":")
    own = "." in source and all(part.isidentifier() for part in source.split("."))  # a loader, which may take a file
    if name.endswith(FILE_KINDS) and not (colon and (source == STEPS or own)):
        return Spec(text, file=name, options=options)
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


# A part of a task set: by instance, repository, date, size, difficulty, or a reproducible share.
#
# A share is stable: a task's place in [0, 1) is a hash of its id (or its repository) and the seed, so that `part=0-0.9`
# and `part=0.9-1` have nothing in common and stay what they are when a corpus grows.
def select(tasks: list[Task], options: Mapping[str, str], spec: str) -> list[Task]:
    """Return the tasks that all the options leave, in the source's order. `limit` is applied last, `expect` checks
    their number.

    Raises `UserError` for an invalid value, an id that does not exist, a task without the repository or date that an
    option asks for, and a number of tasks other than `expect`.
    """
    try:
        for name, take in _TAKES.items():
            if name in options:
                tasks = take(tasks, options)
        if "expect" in options and len(tasks) != _whole(options, "expect"):
            raise UserError(f"holds {len(tasks)} tasks, not the {options['expect']} that are expected")
    except UserError as error:
        raise UserError(f"task set {spec!r}: {error}") from error
    return tasks


def _ids(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    wanted = set(_listed(options["id"])) if "id" in options else set()
    if "ids" in options:
        wanted |= set(read_ids(Path(options["ids"]).expanduser()))
    _require_ids(wanted, tasks)
    return [task for task in tasks if task.id in wanted]


def _without_ids(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    unwanted = set(_listed(options["not_id"]))
    _require_ids(unwanted, tasks)
    return [task for task in tasks if task.id not in unwanted]


def _require_ids(wanted: Set[str], tasks: list[Task]) -> None:
    missing = sorted(wanted - {task.id for task in tasks})
    if missing:
        raise UserError(f"{len(missing)} of {len(wanted)} ids are not in it: {', '.join(missing[:5])}")


def read_ids(path: Path) -> list[str]:
    """Read instance ids: one a line (`#` begins a comment), or a JSON list. Raises `UserError`."""
    try:
        text = files.read_given(path, "the list of ids").decode()
        ids = orjson.loads(text) if text.lstrip().startswith("[") else _lines(text)
    except (UnicodeDecodeError, orjson.JSONDecodeError) as error:  # bytes that are no text, or no JSON
        raise UserError(f"the list of ids {path} is neither lines of text nor a JSON list: {error}") from error
    if not ids or not all(isinstance(item, str) for item in ids):
        raise UserError(f"the list of ids {path} holds no ids, or something else than ids")
    return list(ids)


def _lines(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _repos(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    wanted = {repo.lower() for repo in _listed(options["repo"])}
    there = {_known(task, "repo").lower() for task in tasks}
    if wanted - there:
        raise UserError(f"no task is of {', '.join(sorted(wanted - there))}; there are: {', '.join(sorted(there))}")
    return [task for task in tasks if _known(task, "repo").lower() in wanted]


def _without_repos(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    """Leave out the tasks of these repositories. A task that does not say its repository is of none of them."""
    unwanted = {repo.lower() for repo in _listed(options["not_repo"])}
    return [task for task in tasks if str(task.metadata.get("repo", "")).lower() not in unwanted]


def _difficulties(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    """Take the tasks of these difficulties. One that does not say how difficult it is goes out, as long as some do."""
    wanted = {level.lower() for level in _listed(options["difficulty"])}
    levels = {task.id: str(task.metadata.get("difficulty", "")).lower() for task in tasks}
    there = {level for level in levels.values() if level}
    if wanted - there:
        missing = ", ".join(sorted(wanted - there))
        raise UserError(f"no task is of difficulty {missing}; there are: {', '.join(sorted(there)) or 'none stated'}")
    return [task for task in tasks if levels[task.id] in wanted]


def _sized(name: str, size: Callable[[Task], int]) -> Callable[[list[Task], Mapping[str, str]], list[Task]]:
    """Make the selection of tasks whose size is within a range, both ends included."""

    def take(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
        low, dash, high = options[name].partition("-")
        if not dash or not (low + high).isdecimal() or (low and high and int(low) > int(high)):
            raise UserError(f"{name}={options[name]} must be a range such as 1-100, 1- or -100")
        least, most = int(low or 0), int(high) if high else None
        return [task for task in tasks if least <= size(task) and (most is None or size(task) <= most)]

    return take


def _patch_lines(task: Task) -> int:
    """Count the lines that the gold patch adds and removes."""
    return sum(1 for _ in changed_lines(task.oracle.gold_patch))


def _patch_files(task: Task) -> int:
    return len(paths_of(task.oracle.gold_patch))


def _tests(task: Task) -> int:
    """Count the tests that are graded."""
    return len(task.oracle.fail_to_pass) + len(task.oracle.pass_to_pass)


def _before(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    limit = _date(options["before"], "before")
    return [task for task in tasks if _created(task) < limit]


def _after(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    limit = _date(options["after"], "after")
    return [task for task in tasks if _created(task) >= limit]


def most_left(count: int | None, options: Mapping[str, str]) -> int | None:
    """Return how many of `count` tasks these options leave at most, by those that say a number or a share; None where
    neither they nor `count` say it. Raises `UserError` for an invalid value."""
    if "part" in options and count is not None:
        low, high = _bounds(options)
        count = ceil(count * (high - low))
    if "id" in options:
        count = len(set(_listed(options["id"])))
    if "limit" in options:
        count = _whole(options, "limit") if count is None else min(count, _whole(options, "limit"))
    return _whole(options, "expect") if "expect" in options else count


def _part(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    low, high = _bounds(options)
    key, seed = _key(options.get("by", "instance")), options.get("seed", "0")
    return [task for task in tasks if low <= place(key(task), seed) < high]


def _bounds(options: Mapping[str, str]) -> tuple[float, float]:
    low, dash, high = options["part"].partition("-")
    try:
        bounds = float(low), float(high)
    except ValueError as error:
        raise UserError(f"part={options['part']} must be two shares such as 0-0.9") from error
    if not dash or not 0 <= bounds[0] < bounds[1] <= 1:
        raise UserError(f"part={options['part']} must be two shares of which the first is smaller, in 0 to 1")
    return bounds


def place(key: str, seed: str) -> float:
    """Place a key in [0, 1), evenly spread and the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:6], "big") / 2**48


def _key(by: str) -> Callable[[Task], str]:
    keys: dict[str, Callable[[Task], str]] = {
        "instance": lambda task: str(task.metadata.get(TOGETHER, task.id)),
        "repo": lambda task: _known(task, "repo").lower(),
    }
    if by not in keys:
        raise UserError(f"by={by} must be one of {', '.join(keys)}")
    return keys[by]


def _limit(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    return tasks[: _whole(options, "limit")]


def _whole(options: Mapping[str, str], name: str) -> int:
    if not options[name].isdecimal() or int(options[name]) < 1:
        raise UserError(f"{name}={options[name]} must be a whole number of at least 1")
    return int(options[name])


def _listed(text: str) -> Iterable[str]:
    return [item for item in map(str.strip, text.split(",")) if item]


def _known(task: Task, name: str) -> str:
    value = task.metadata.get(name)
    if not isinstance(value, str) or not value:
        raise UserError(f"task {task.id!r} does not say its {name}, by which tasks are to be chosen")
    return value


def _created(task: Task) -> datetime:
    return _date(_known(task, "created_at"), f"the date of task {task.id!r}")


def _date(text: str, what: str) -> datetime:
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{what} must be a date such as 2022-01-31, got {text!r}") from error
    return date if date.tzinfo else date.replace(tzinfo=UTC)


_TAKES: dict[str, Callable[[list[Task], Mapping[str, str]], list[Task]]] = {
    "id": _ids,
    "ids": _ids,
    "not_id": _without_ids,
    "repo": _repos,
    "not_repo": _without_repos,
    "difficulty": _difficulties,
    "patch_lines": _sized("patch_lines", _patch_lines),
    "patch_files": _sized("patch_files", _patch_files),
    "tests": _sized("tests", _tests),
    "statement": _sized("statement", lambda task: len(task.statement)),
    "before": _before,
    "after": _after,
    "part": _part,
    "limit": _limit,
}


# Images from a registry of one's own, a mirror or a cache, in place of the one that their names say.
WANTED = (
    "a registry's address and a path in it, as mirror.example:5000/swe, or an image's whole name with {name} (what it "
    "is called elsewhere) or {id} (the task's)"
)
_FIELDS = {"name", "id"}
_DOCKER = "docker://"  # as Apptainer names what Docker would pull


def is_registry(text: str) -> bool:
    """Say whether a text is what `WANTED` says."""
    try:
        fields = {field for _, field, *_ in string.Formatter().parse(text) if field is not None}
    except ValueError:  # a brace alone
        return False
    return bool(text) and "://" not in text and not any(map(str.isspace, text)) and fields <= _FIELDS


def mirrored(task: Task, registry: str) -> Task:
    """Return the task with its image from a registry. One that is no registry's, as a folder or a `.sif` file, stays.

    Raises `UserError` for what is no registry.
    """
    if not is_registry(registry):
        raise UserError(f"registry={registry!r} is no registry: give {WANTED}")
    image = task.workspace.image
    if image is None:
        return task
    named = replace(image, name=name_in(registry, image.name, task.id))
    return replace(task, workspace=replace(task.workspace, image=named))


def name_in(registry: str, name: str, task_id: str) -> str:
    """Return the registry's name for an image that Docker knows by `name`."""
    scheme, name = (_DOCKER, name.removeprefix(_DOCKER)) if name.startswith(_DOCKER) else ("", name)
    if name.startswith(("/", "dir:")) or name.endswith(".sif") or "://" in name:
        return name
    if name.startswith(f"{registry.rstrip('/')}/"):
        return scheme + name  # it is that registry's already
    host, slash, path = name.partition("/")
    if not slash:
        path = f"library/{name}"  # Docker's own images
    elif not ("." in host or ":" in host or host == "localhost"):
        path = name
    whole = registry if "{" in registry else f"{registry.rstrip('/')}/{{name}}"
    return scheme + whole.format(name=path, id=task_id)
