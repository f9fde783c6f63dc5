"""Make training tasks of Python packages: faults put into them, and one release's code under the next one's tests.

slime-swe make-tasks toolz boltons more-itertools --out made.jsonl
slime-swe make-tasks toolz==1.0.0 ./shop-2.1.tar.gz --out made.jsonl --tasks 200
slime-swe train recipe=tiny_cpu "data.train=['made.jsonl']"

Each task has proven itself: its tests fail without the fix and pass with it, in three runs each. The same command goes
on after an interruption. docs/make_tasks.md says what is made, and what is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime_swe import files
from slime_swe.data_sources.factory.downloads import find_releases
from slime_swe.data_sources.factory.tasks import by_solve_rate
from slime_swe.data_sources.factory.writing import requests_of, written_candidates
from slime_swe.data_sources.registry import prepare_file, write_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.launch.episodes import read_episodes, select
from slime_swe.launch.extras import require
from slime_swe.launch.factory import FactorySettings, Journal, Outcome, make
from slime_swe.launch.factory.containers import write_harbor, write_swebench
from slime_swe.launch.output import print_json, visible
from slime_swe.launch.pass_rates import rates_in
from slime_swe.launch.progress import Bar
from slime_swe.launch.runs import find_run
from slime_swe.redaction import secrets_of

SOURCES = ("faults", "releases")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="NAME, NAME==VERSION, or a source distribution")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the tasks, one a line (.jsonl)")
    parser.add_argument("--tasks", type=int, default=80, metavar="N",
                        help="of faults of each package, at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--releases", type=int, default=3, metavar="N",
                        help="pairs of releases of each package, at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--check", type=int, default=20, metavar="N",
                        help="tasks that the grader of training validates too (default: %(default)s)")  # fmt: skip
    parser.add_argument("--requests", type=Path, metavar="FILE",
                        help="write tasks that ask an agent for faults and features, too (.jsonl)")  # fmt: skip
    parser.add_argument("--written", action="append", default=[], metavar="RUN",
                        help="a run or evaluation of such requests: what its agents wrote is tried")  # fmt: skip
    parser.add_argument("--solve-rates", metavar="RUN",
                        help="a run or evaluation of these tasks, whose solve rates say how hard they are")  # fmt: skip
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--harbor", type=Path, metavar="FOLDER", help="write a folder for each task for Harbor, too")
    parser.add_argument("--swebench", type=Path, metavar="FOLDER", help="write SWE-bench's records and images, too")
    parser.add_argument("--sandbox", default="local", metavar="NAME", help="where tests run (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="sandboxes at once (default: one for each processor)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    for name, least in (("tasks", 0), ("releases", 0), ("check", 0), ("jobs", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} must be at least {least}, got {getattr(options, name)}")
    require("swesmith", "libcst", "tree_sitter", "coverage", extra="factory")
    for folder in (options.harbor, options.swebench):
        if folder is not None and folder.exists():
            raise UserError(f"{folder} is there already: give a new folder, or remove it")
    prepare_file(options.out, "--out")
    if options.requests:
        prepare_file(options.requests, "--requests")
    started = time.monotonic()
    outcome = _made(options)
    if options.solve_rates:
        rates = solve_rates(options.solve_rates, options.dir)
        outcome.tasks = [with_rate(task, rates.get(task.id)) for task in outcome.tasks]
    write_tasks(options.out, outcome.tasks)
    if options.requests:
        write_tasks(options.requests, requests_of(outcome.tasks))
    if options.harbor:
        write_harbor(outcome.tasks, options.harbor)
    if options.swebench:
        write_swebench(outcome.tasks, options.swebench)
    seconds = round(time.monotonic() - started, 1)
    document = {**_document(outcome), "seconds": seconds, "out": str(options.out)}
    if options.json:
        print_json(document)
    else:
        print("\n".join(_lines(document)))
    return 0 if outcome.tasks else 1


def _made(options: argparse.Namespace) -> Outcome:
    sources = tuple(name for name, given in zip(SOURCES, (options.tasks, options.releases), strict=True) if given)
    settings = FactorySettings(options.sandbox, options.jobs, options.tasks, sources, options.check)  # type: ignore[arg-type]
    patches = [pair for run in options.written for pair in patches_of(run, options.dir)]
    path = options.out.with_name(f"{options.out.name}.journal")
    try:
        with files.locked(path.with_name(f"{path.name}.lock"), wait=False):
            journal = Journal(path)
            groups = find_releases(options.packages, options.releases)
            with Bar("making", options.tasks * len(groups)) as bar:
                if len(journal):
                    bar.say(f"going on with {len(journal)} candidates of {path}")
                return asyncio.run(
                    make(
                        groups,
                        settings,
                        journal,
                        written=lambda package: written_candidates(package, patches),
                        say=bar.say,
                        on_task=lambda count: bar.show(count, bar.total),
                    )
                )
    except BlockingIOError:
        raise UserError(f"another make-tasks writes {options.out}: wait for it, or give another --out") from None


def _document(outcome: Outcome) -> dict[str, Any]:
    tasks = outcome.tasks
    counted = {
        "by_source": [task.source.removeprefix("factory-") for task in tasks],
        "by_kind": [task.metadata["kind"] for task in tasks],
        "by_package": [task.metadata["repo"] for task in tasks],
        "by_difficulty": [task.metadata["difficulty"] for task in tasks],
    }
    return {
        "tasks": len(tasks),
        **{name: dict(Counter(values).most_common()) for name, values in counted.items()},
        "none": dict(outcome.reasons.most_common()),
        "checked": outcome.checked,
        "unsound": [{"task": finding.task, "detail": finding.detail} for finding in outcome.unsound],
        "without": outcome.without,
    }


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['tasks']} tasks in {document['seconds']} s: {document['out']}"
    for name in ("by_source", "by_package", "by_kind", "by_difficulty"):
        counts = ", ".join(f"{kind} {count}" for kind, count in document[name].items())
        yield f"{name.replace('_', ' ')}: {counts}"
    none = ", ".join(f"{count} {reason}" for reason, count in document["none"].items() if count)
    yield f"candidates that are no task: {none or 'none'}"
    yield f"{document['checked']} validated once more, {len(document['unsound'])} of them left out"
    yield from (visible(f"  {one['task']}: {one['detail']}") for one in document["unsound"])


# A run or an evaluation gives the patches that agents wrote, and how often each task was solved.
_SOUND = argparse.Namespace(
    rollout=None, task=None, evaluation=None, solved=None, broken=False, min_reward=None, max_reward=None
)


def patches_of(run: str, runs: str) -> list[tuple[str, str]]:
    """Return (task's id, patch) of sound episodes with a patch. Raises `UserError` where infrastructure broke all."""
    folder = find_run(run, runs)
    journal, selected = select(folder, _SOUND)
    if not selected:
        raise UserError(f"{journal} has no episode that infrastructure did not break")
    episodes = read_episodes(folder, journal, selected, secrets_of(os.environ))
    return [(episode.task, episode.patch) for episode in episodes if episode.patch]


def solve_rates(run: str, runs: str) -> dict[str, float]:
    """Return the share of each task's sound episodes that solved it, by id. Raises `UserError` where there are none."""
    folder = find_run(run, runs)
    rates, _ = rates_in([folder], None)
    if not any(rate.episodes for rate in rates.values()):
        raise UserError(f"{folder} has no episode that infrastructure did not break")
    return {task: float(rate.share) for task, rate in rates.items() if rate.episodes}


def with_rate(task: Task, rate: float | None) -> Task:
    """Return the task with its solve rate and the difficulty that follows from it, or as it is for None."""
    if rate is None:
        return task
    found: Mapping[str, object] = {**task.metadata, "solve_rate": round(rate, 4), "difficulty": by_solve_rate(rate)}
    return replace(task, metadata=found)
