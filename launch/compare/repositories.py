"""The repository that a task is of: by its id where that says so, else by its record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.launch.config import read_recipe
from slime_swe.launch.runs import RECIPE_FILE

_SWEBENCH_ID = re.compile(r"([\w.-]+?)__([\w.-]+)-\d+")  # django__django-11099


def repositories_of(tasks: Iterable[str], places: Iterable[tuple[Path, str]]) -> tuple[dict[str, str] | None, str]:
    """Task -> `owner/name`; or None, and why. places: folders of runs, and the name that the tasks' set has there."""
    wanted = list(tasks)
    known = {task: f"{match[1]}/{match[2]}" for task in wanted if (match := _SWEBENCH_ID.fullmatch(task))}
    why = "the ids do not name them"
    for folder, name in places:
        if len(known) == len(wanted):
            break
        try:
            known |= _recorded(folder, name)
        except UserError as error:
            why = str(error)
        else:
            why = "their records do not name them"
    missing = [task for task in wanted if task not in known]
    if missing:
        return (
            None,
            f"the repositories of {len(missing)} of {len(wanted)} tasks are not known ({missing[0]}, ...): {why}",
        )
    return {task: known[task] for task in wanted}, ""


def _recorded(folder: Path, name: str) -> dict[str, str]:
    """From the tasks of a run's evaluation set. Raises `UserError` where they are not on this machine."""
    spec = read_recipe(folder / RECIPE_FILE).data.eval.get(name)
    if spec is None:
        raise UserError(f"{folder / RECIPE_FILE} has no data.eval.{name}")
    return {task.id: found for task in load_tasks(spec) if (found := repository_of(task))}


def repository_of(task: Task) -> str:
    """Empty where nothing names it."""
    return str(task.metadata.get("repo") or getattr(task.oracle, "repo", ""))
