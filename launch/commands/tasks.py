"""List or show tasks (`slime-swe validate` proves them).

slime-swe tasks list                          the task sources
slime-swe tasks list synthetic:heldout         the tasks of a set
slime-swe tasks list 'swebench:verified?repo=django/django'
slime-swe tasks show synthetic:heldout ID      one task
slime-swe tasks fetch swegym:train swebench:verified
                                              bring these corpora onto this machine, where they are then read offline
slime-swe tasks images swegym:train --sandbox docker
                                              which of their images are here, and what the others take
slime-swe tasks images swegym:train --sandbox docker --pull
                                              get those; the same command goes on after an interruption
slime-swe tasks checkout 'bugsinpy:all?repo=psf/black' --cache FOLDER
                                              check out each task's commit, and nothing else of its repository
slime-swe tasks filter first --solved 1-7 --out train.txt
                                              list the tasks that 1 to 7 of a run's 8 episodes have solved
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.registry import SOURCES, counted, load_tasks, parse
from slime_swe.data_sources.repositories import checkout, fetch
from slime_swe.data_sources.task import HarnessOracle, Task
from slime_swe.errors import UserError, unknown
from slime_swe.launch.images import get, images_command, survey
from slime_swe.launch.output import print_json, visible
from slime_swe.launch.pass_rates import as_override, filtered, rates_in, write_lists
from slime_swe.launch.runs import find_run

EXAMPLES = {
    "list": "synthetic:heldout",
    "show": "synthetic:heldout",
    "fetch": "swegym:train",
    "images": "swegym:train",
    "checkout": "'bugsinpy:all?repo=psf/black'",
    "filter": "first --solved 1-7",
}
ACTIONS = tuple(EXAMPLES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "spec",
        nargs="?",
        metavar="SET",
        help="a task set, e.g. synthetic:heldout or path/to/tasks.jsonl; a run (filter)",
    )
    parser.add_argument(
        "rest", nargs="*", metavar="ID|SET", help="a task's id (show); more task sets (fetch, images) or runs (filter)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    parser.add_argument(
        "--cache", type=Path, default=Path("repositories"), metavar="FOLDER", help="where to (checkout)"
    )
    parser.add_argument("--from", dest="source", default="", metavar="DIR",
                        help="a copy of the data set, in place of the Hugging Face Hub (fetch)")  # fmt: skip
    parser.add_argument("--sandbox", default="docker", help="what runs the tasks, as rollout.sandbox names it (images)")
    parser.add_argument("--pull", action="store_true", help="get the images that are missing (images)")
    parser.add_argument("--ignore-disk", action="store_true", help="get them where the disk seems too small (images)")
    parser.add_argument("--solved", metavar="LOW-HIGH", help="counts as 1-7, or shares as 10%%-90%% (filter)")
    parser.add_argument(
        "--min-episodes", type=int, default=2, metavar="N", help="of a task, default %(default)s (filter)"
    )
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training (filter)")
    parser.add_argument("--out", type=Path, default=Path("filtered.txt"), metavar="FILE",
                        help="a new file of ids, default %(default)s (filter)")  # fmt: skip
    parser.add_argument("--dir", default="runs", help="folder of all runs, default %(default)s (filter)")


def run(options: argparse.Namespace) -> int:
    if options.action == "filter":
        return _filter(options)
    if options.action == "list" and options.spec is None:
        return _list_sources(options.json)
    if options.spec is None:
        raise UserError(f"`tasks {options.action}` needs a task set, e.g. {EXAMPLES[options.action]}")
    if options.action == "fetch":
        return _fetch([options.spec, *options.rest], options.source, options.json)
    if options.action == "images":
        return _images([options.spec, *options.rest], options)
    if len(options.rest) > (options.action == "show"):
        raise UserError(f"`tasks {options.action}` takes one task set, got also {' '.join(options.rest)}")
    tasks, of = counted(options.spec)
    if options.action == "show":
        return _show(options.spec, tasks, next(iter(options.rest), None), options.json)
    if options.action == "checkout":
        return _checkout(tasks[: options.limit], options.cache, options.json)
    if len(tasks) < of:
        print(f"{len(tasks)} of {of} tasks; the others are left out by what follows the ?", file=sys.stderr)
    return _list(tasks[: options.limit], options.json)


def _list_sources(as_json: bool) -> int:
    if as_json:
        print_json(SOURCES)
        return 0
    for name, path in SOURCES.items():
        if name not in CORPORA:
            print(f"{name}:SPLIT  {path}")
    for corpus in CORPORA.values():
        for split, part in corpus.splits.items():
            print(f"{corpus.name}:{split}  {corpus.title}, {part.count or 'many'} tasks, {part.languages}")
    print("Also: path/to/tasks.jsonl, module.function:SPLIT. Docs: docs/corpora.md")
    return 0


def _list(tasks: list[Task], as_json: bool) -> int:
    if as_json:
        print_json([_brief(task) for task in tasks])
        return 0
    for task in tasks:
        image, files = task.workspace.image, len(task.workspace.files)
        contents = [f"{files} files"] * (image is None or files > 0) + ([image.name] if image else [])
        print(visible(f"{task.id}  {' + '.join(contents)}  {next(iter(task.statement.splitlines()), ''):.80}"))
    return 0


def _fetch(specs: list[str], source: str, as_json: bool) -> int:
    """Fetch the whole split of the corpus of each set, whatever part of it the set names."""
    if source and len(specs) > 1:
        raise UserError(f"--from is a copy of one data set, and {len(specs)} task sets are asked for: one at a time")
    brought = []
    for spec in specs:
        parsed = parse(spec)
        if parsed.source not in CORPORA:
            raise UserError(f"task set {spec!r} is of no corpus, and needs no fetching; {', '.join(CORPORA)} do")
        corpus, folder = CORPORA[parsed.source], parsed.options.get("folder")
        path = fetch(
            corpus, parsed.split, corpus.folder(Path(folder) if folder else None), source=source, shown=_with_progress
        )
        tasks = load_tasks(spec)
        images = len({task.workspace.image.name for task in tasks if task.workspace.image})
        brought.append({"set": spec, "path": str(path), "tasks": len(tasks), "images": images})
        if not as_json:
            print(f"{spec}  {len(tasks):,} tasks in {images:,} images  {path}")
    if as_json:
        print_json({"fetched": brought})
    return 0


def _with_progress(records: Iterable[Any], total: int) -> Iterator[Any]:
    yield from track(records, "records", total, console=Console(stderr=True))


def _images(specs: list[str], options: argparse.Namespace) -> int:
    """List the images that are here and missing, and with `--pull` get these; return 1 where some can't be had."""
    found = survey([task for spec in specs for task in load_tasks(spec)[: options.limit]], options.sandbox)
    failed: dict[str, str] = {}
    if not options.json:
        print(found)
    if options.pull and not found.fits and not options.ignore_disk:
        few = int((found.free_gib or 0) / found.each)
        raise UserError(
            f"the disk has too little room: take a part, such as {specs[0].partition('?')[0]}?limit={few}, put the "
            "images on a larger disk (docs/sandboxes.md, Images), or give --ignore-disk"
        )
    if options.pull:
        arrivals = track(get(found), "images", len(found.missing), console=Console(stderr=True))
        failed = {image: error for image, error in arrivals if error}
        if not options.json:
            print(f"{len(found.missing) - len(failed):,} images came, {len(failed):,} could not be had")
    elif found.missing and not options.json:
        print(f"get them: {images_command(specs, options.sandbox)}")
    if options.json:
        missing = list(failed) if options.pull else list(found.missing)
        print_json({**asdict(found), "missing": missing, "failed": failed})
    for image, error in failed.items():
        print(f"{image}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _filter(options: argparse.Namespace) -> int:
    """Select tasks by how often a run's or an evaluation's episodes have solved them."""
    if options.spec is None or not options.solved:
        raise UserError(f"`tasks filter` needs a run and --solved, e.g. {EXAMPLES['filter']}, or 10%-90%")
    folders = [find_run(name, options.dir) for name in dict.fromkeys([options.spec, *options.rest])]
    rates, sets = rates_in(folders, options.evaluation)
    found = filtered(rates, options.solved, options.min_episodes)
    lists = write_lists(found, sets, options.out)
    override = as_override(lists)
    if options.json:
        kept = {task: [rate.solved, rate.episodes] for task, rate in found.kept.items()}
        files = {spec: str(path) for spec, path in lists.items()}
        print_json({"kept": kept, "left_out": found.out, "of": found.of, "files": files, "override": override})
        return 0
    print(f"{found}\n{override}")
    return 0


def _checkout(tasks: list[Task], cache: Path, as_json: bool) -> int:
    """Check out each task's commit and show where it lies; return 1 where a task names none or it can't be had."""
    fetched, refused = {}, {}
    for task in tasks:
        repo, commit = (str(task.metadata.get(name) or "") for name in ("repo", "base_commit"))
        address = repo if "://" in repo else f"https://github.com/{repo}"
        try:
            if not repo or not commit:
                raise UserError(f"task {task.id} does not say of which repository and commit it is")
            fetched[task.id] = str(checkout(address, commit, cache))
        except UserError as error:
            refused[task.id] = str(error)
    if as_json:
        print_json({"fetched": fetched, "refused": refused})
    else:
        for task_id, where in (fetched | refused).items():
            print(f"{task_id}  {where}")
    return 1 if refused else 0


def _brief(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "source": task.source,
        "split": task.split,
        "files": list(task.workspace.files),
        "image": task.workspace.image.name if task.workspace.image else None,
        "fail_to_pass": len(task.oracle.fail_to_pass),
        "pass_to_pass": len(task.oracle.pass_to_pass),
        "metadata": dict(task.metadata),
    }


def _show(spec: str, tasks: list[Task], task_id: str | None, as_json: bool) -> int:
    found = [task for task in tasks if task.id == task_id]
    if task_id is None:
        raise UserError(f"`tasks show {spec}` needs a task's id, e.g. {tasks[0].id}")
    if not found:
        raise UserError(unknown(f"task of {spec}", task_id, [task.id for task in tasks]))
    if as_json:
        print_json(found[0].to_dict())
    else:
        print(visible("\n\n".join(f"## {title}\n{text.rstrip()}" for title, text in _sections(found[0]))))
    return 0


def _sections(task: Task) -> Iterator[tuple[str, str]]:
    oracle, image = task.oracle, task.workspace.image
    yield f"{task.id} ({task.source}, {task.split})", task.statement
    if task.metadata:
        yield "metadata", "\n".join(f"{name}: {value}" for name, value in task.metadata.items())
    if image:
        yield "image", "\n".join(filter(None, (image.name, image.folder, image.setup)))
    yield from task.workspace.files.items()
    yield "fail to pass", "\n".join(oracle.fail_to_pass)
    yield "pass to pass", "\n".join(oracle.pass_to_pass)
    if oracle.command:
        yield "test command", oracle.command
    if isinstance(oracle, HarnessOracle):
        yield f"eval script, read by {oracle.log_parser}", oracle.eval_script
    yield "gold patch", oracle.gold_patch
