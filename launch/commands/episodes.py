"""Show a trajectory of a run, or list those that match.

slime-swe episodes RUN                        the last one
slime-swe episodes RUN --solved --rollout 39
slime-swe episodes RUN --evaluation heldout --list
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from launch.args import checkpoint_folder
from launch.config import read_recipe
from launch.output import print_json
from launch.runs import RECIPE_FILE, RunError, find_run
from launch.trajectory import line_of, readable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name, or its folder")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--rollout", type=int, metavar="K", help="only of rollout K")
    parser.add_argument("--index", type=int, metavar="I", help="only the sample of this index")
    parser.add_argument("--task", metavar="ID", help="only of this task")
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training")
    parser.add_argument(
        "--solved", action=argparse.BooleanOptionalAction, help="only those that solved the task, or not"
    )
    parser.add_argument("--list", action="store_true", help="one line for each that matches")


def run(options: argparse.Namespace) -> int:
    folder = find_run(options.run, options.dir)
    path = folder / ("evaluations.jsonl" if options.evaluation else "episodes.jsonl")
    matching = (record for record in read_records(path) if matches(record, options))
    if options.list:
        return _list(matching, options.json)
    shown = None
    for record in matching:
        shown = record
    if shown is None:
        raise RunError(f"no episode in {path} matches: `slime-swe episodes {options.run} --list` shows what there is")
    if options.json:
        print_json(shown)
    else:
        model = read_recipe(folder / RECIPE_FILE).model
        tokenizer = checkpoint_folder(model.checkpoint, model.folder) / "tokenizer.json"
        print(readable(shown, tokenizer))
    return 0


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a trajectory file, in order. A last line that a killed run left unfinished is passed over."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield orjson.loads(line)
    except FileNotFoundError as error:
        raise RunError(f"{path} is not there yet: the run has finished no such step") from error


def matches(record: dict[str, Any], options: argparse.Namespace) -> bool:
    wanted = {
        "rollout_id": options.rollout,
        "index": options.index,
        "task": options.task,
        "dataset": options.evaluation,
    }
    if any(value is not None and record.get(name) != value for name, value in wanted.items()):
        return False
    return options.solved is None or options.solved == bool((record.get("score") or {}).get("solved"))


def _list(records: Iterator[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print_json([{name: record[name] for name in ("rollout_id", "index", "task", "reward")} for record in records])
        return 0
    for record in records:
        print(line_of(record))
    return 0
