"""List or show tasks (`slime-swe validate` proves them).

slime-swe tasks list                          the task sources
slime-swe tasks list embedded:heldout         the tasks of a set
slime-swe tasks show embedded:heldout ID      one task
"""

from __future__ import annotations

import argparse
from typing import Any

from data_sources.arguments import unknown
from data_sources.registry import SOURCES, RegistryError, load_tasks
from data_sources.task import Task
from launch.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show"))
    parser.add_argument(
        "spec", nargs="?", metavar="SET", help="a task set, e.g. embedded:heldout or path/to/tasks.jsonl"
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="a task's id (show)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")


def run(options: argparse.Namespace) -> int:
    if options.action == "list" and options.spec is None:
        return _list_sources(options.json)
    if options.spec is None:
        raise RegistryError(f"`tasks {options.action}` needs a task set, e.g. embedded:heldout")
    tasks = load_tasks(options.spec)
    if options.action == "show":
        return _show(options.spec, tasks, options.id, options.json)
    return _list(tasks[: options.limit], options.json)


def _list_sources(as_json: bool) -> int:
    if as_json:
        print_json(SOURCES)
        return 0
    for name, path in SOURCES.items():
        print(f"{name}:SPLIT  {path}")
    print("Also: path/to/tasks.jsonl, module.function:SPLIT")
    return 0


def _list(tasks: list[Task], as_json: bool) -> int:
    if as_json:
        print_json([_brief(task) for task in tasks])
        return 0
    for task in tasks:
        print(f"{task.id}  {len(task.workspace.files)} files  {task.statement.splitlines()[0]:.80}")
    return 0


def _brief(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "source": task.source,
        "split": task.split,
        "files": list(task.workspace.files),
        "fail_to_pass": len(task.oracle.fail_to_pass),
        "pass_to_pass": len(task.oracle.pass_to_pass),
        "metadata": dict(task.metadata),
    }


def _show(spec: str, tasks: list[Task], task_id: str | None, as_json: bool) -> int:
    found = [task for task in tasks if task.id == task_id]
    if task_id is None:
        raise RegistryError(f"`tasks show {spec}` needs a task's id, e.g. {tasks[0].id}")
    if not found:
        raise RegistryError(unknown(f"task of {spec}", task_id, [task.id for task in tasks]))
    if as_json:
        print_json(found[0].to_dict())
        return 0
    print(_readable(found[0]))
    return 0


def _readable(task: Task) -> str:
    sections = [(f"{task.id} ({task.source}, {task.split})", task.statement)]
    sections += list(task.workspace.files.items())
    sections += [
        ("fail to pass", "\n".join(task.oracle.fail_to_pass)),
        ("pass to pass", "\n".join(task.oracle.pass_to_pass)),
        ("test command", task.oracle.command),
        ("gold patch", task.oracle.gold_patch),
    ]
    return "\n\n".join(f"## {title}\n{text.rstrip()}" for title, text in sections)
