"""Make specification tasks also of code whose docstrings say too little, with a model's descriptions: a file of tasks.

slime-swe describe specification:toolz http://localhost:8000/v1 --model NAME --out described.jsonl
slime-swe describe specification:toolz/classes https://api.example.com/v1 --model large \\
    --key-variable EXAMPLE_API_KEY --limit 50 --out described.jsonl
slime-swe train recipe=tiny_cpu "data.train=['described.jsonl']"

All tasks of the set are in the file; the model is asked of those alone that would be left out without a description.
What it says is kept beside the file, and the same command goes on after an interruption without asking again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from slime_swe.data_sources.registry import parse, prepare_file, write_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.launch.evaluation.target import Endpoint, endpoint_of
from slime_swe.launch.extras import require
from slime_swe.launch.output import print_json
from slime_swe.rollout.endpoint.client import key_of
from slime_swe.rollout.endpoint.descriptions import KeptDescriptions, describer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SET", help="specification:PACKAGE, also with /classes, /modules and so on")
    parser.add_argument("url", metavar="URL", help="the base of an OpenAI-compatible API, as https://HOST/v1")
    parser.add_argument("--model", metavar="NAME", help="the model's name there")
    parser.add_argument("--key-variable", metavar="VARIABLE", help="the environment's variable that holds its key")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the tasks, one a line (.jsonl)")


def run(options: argparse.Namespace) -> int:
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit must be at least 1, got {options.limit}")
    prepare_file(options.out, "--out")
    endpoint = endpoint_of(options.url, options.model, options.key_variable)
    if endpoint is None:
        raise UserError(f"{options.url} is no address of an endpoint: give the base of its API, as https://HOST/v1")
    descriptions = _descriptions(endpoint, options.out)
    tasks = _made(options.spec, descriptions, options.limit)
    write_tasks(options.out, tasks)
    asked, known = descriptions.asked, descriptions.known
    if options.json:
        print_json({"tasks": len(tasks), "asked": asked, "known": known, "out": str(options.out)})
    else:
        print(f"{len(tasks)} tasks: {options.out}")
        print(f"{asked} descriptions by {endpoint.model}, and {known} that it had given before")
    return 0


def _made(spec: str, descriptions: KeptDescriptions, limit: int | None) -> list[Task]:
    require("libcst", "coverage", extra="factory")
    from slime_swe.data_sources.specification import tasks

    parsed = parse(spec)
    if parsed.source != "specification" or parsed.split in tasks.GENERATED or parsed.options:
        raise UserError(
            f"{spec} can't be described: give specification:PACKAGE, of an installed package or the path of a source "
            "distribution, without options after a ?"
        )
    project, size = tasks.of_package(parsed.split)
    made = tasks.make_tasks(project, size, descriptions.describe, limit)
    if not made:
        raise UserError(f"{spec} has no task, described or not: no test fails without a body that could be removed")
    return made


def _descriptions(endpoint: Endpoint, out: Path) -> KeptDescriptions:
    """Open the descriptions kept beside the file; the endpoint's spending is recorded there too."""
    kept, spending = (out.with_name(f"{out.name}.{what}") for what in ("descriptions", "spending"))
    model = describer(endpoint.url, endpoint.model, spending, key_of(endpoint.key_variable))
    return KeptDescriptions(kept, endpoint.model, model)
