"""Take a part of a task set: by instance, repository, date, size, difficulty, or a reproducible share.

A share is stable: a task's place in [0, 1) is a hash of its id (or its repository) and the seed, so that `part=0-0.9`
and `part=0.9-1` have nothing in common and stay what they are when a corpus grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import UTC, datetime
from math import ceil
from pathlib import Path

import orjson

from slime_swe.data_sources.task import TOGETHER, Task
from slime_swe.errors import UserError
from slime_swe.files import read_given
from slime_swe.patches import changed_lines, paths_of

# What `data.filters` may hold: options that say something of a task, and not which share of a set is taken.
FILTERS = ("repo", "not_repo", "before", "after", "difficulty", "patch_lines", "patch_files", "tests", "statement")


def select(tasks: list[Task], options: Mapping[str, str], spec: str) -> list[Task]:
    """The tasks that all the options leave, in the source's order. `limit` is applied last, `expect` checks their
    number.

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
    """Instance ids: one a line (`#` begins a comment), or a JSON list. Raises `UserError`."""
    try:
        text = read_given(path, "the list of ids").decode()
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
    """A task that does not say its repository is of none of these."""
    unwanted = {repo.lower() for repo in _listed(options["not_repo"])}
    return [task for task in tasks if str(task.metadata.get("repo", "")).lower() not in unwanted]


def _difficulties(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    """A task that does not say how difficult it is goes out, as long as some do."""
    wanted = {level.lower() for level in _listed(options["difficulty"])}
    levels = {task.id: str(task.metadata.get("difficulty", "")).lower() for task in tasks}
    there = {level for level in levels.values() if level}
    if wanted - there:
        missing = ", ".join(sorted(wanted - there))
        raise UserError(f"no task is of difficulty {missing}; there are: {', '.join(sorted(there)) or 'none stated'}")
    return [task for task in tasks if levels[task.id] in wanted]


def _sized(name: str, size: Callable[[Task], int]) -> Callable[[list[Task], Mapping[str, str]], list[Task]]:
    """Takes those tasks whose size is within a range, both ends included."""

    def take(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
        low, dash, high = options[name].partition("-")
        if not dash or not (low + high).isdecimal() or (low and high and int(low) > int(high)):
            raise UserError(f"{name}={options[name]} must be a range such as 1-100, 1- or -100")
        least, most = int(low or 0), int(high) if high else None
        return [task for task in tasks if least <= size(task) and (most is None or size(task) <= most)]

    return take


def _patch_lines(task: Task) -> int:
    """Lines that the gold patch adds and removes."""
    return sum(1 for _ in changed_lines(task.oracle.gold_patch))


def _patch_files(task: Task) -> int:
    return len(paths_of(task.oracle.gold_patch))


def _tests(task: Task) -> int:
    """Tests that are graded."""
    return len(task.oracle.fail_to_pass) + len(task.oracle.pass_to_pass)


def _before(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    limit = _date(options["before"], "before")
    return [task for task in tasks if _created(task) < limit]


def _after(tasks: list[Task], options: Mapping[str, str]) -> list[Task]:
    limit = _date(options["after"], "after")
    return [task for task in tasks if _created(task) >= limit]


def most_left(count: int | None, options: Mapping[str, str]) -> int | None:
    """How many of `count` tasks these options leave at most, by those that say a number or a share; None where neither
    they nor `count` say it. Raises `UserError` for an invalid value."""
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
    """Where in [0, 1) a key lies, evenly spread and the same on every machine."""
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
