"""Train a recipe; without recipe=NAME, tiny_cpu.

slime-swe train recipe=tiny_cpu run.name=first optimizer.lr=3e-4
slime-swe train run.name=first --resume
slime-swe train recipe=qwen25_coder_7b --dry-run                   the flags that SLiME would get
slime-swe train recipe=qwen25_coder_7b --dry-run --script run.sh   the same as a shell script
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slime_swe.attempts import ATTEMPTS, require_ended
from slime_swe.data_sources.corpora.corpus import NotFetched
from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, resolve, value_of
from slime_swe.launch.engines import Engine, Start, engine_of
from slime_swe.launch.output import print_json
from slime_swe.launch.preflight import (
    check_integrity,
    check_overlap,
    check_rehearsal,
    left_out,
    missing_images,
    not_here,
    read_sets,
    record_overlap,
    require_agent,
    require_plug_ins,
    require_sandbox,
)
from slime_swe.launch.runs import (
    RECIPE_FILE,
    attempt_with_status,
    changes,
    create_run,
    find_run,
    make_folder,
    record_end,
    require_new,
    require_same,
    require_usable,
    stopping_when_asked,
    to_go_on,
    with_name,
)
from slime_swe.launch.slime.job import document, readable, script
from slime_swe.launch.warm_start import FOLDER, require_trainable, run_stage
from slime_swe.recipes.base import Recipe
from slime_swe.saving import StoppedToResume, raise_if_stopped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run that run.name names")
    parser.add_argument(
        "--ends-at",
        metavar="SECONDS",
        type=float,
        help="Unix time: the run stops with exit code 75 after the last step that ends before, to be resumed",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command that would be started, start nothing")
    parser.add_argument("--script", metavar="FILE", help="with --dry-run: write the command as a shell script")
    parser.add_argument("--ignore-plan", action="store_true", help="start what `slime-swe plan` says does not fit")
    parser.add_argument(
        "--ignore-integrity", action="store_true", help="start where cheats earn rewards: see `slime-swe integrity`"
    )
    parser.add_argument(
        "--no-rehearsal", action="store_true", help="start without `slime-swe rehearse ... on=gpu` on this machine"
    )


def run(options: argparse.Namespace) -> int:
    if options.script and not options.dry_run:
        raise UserError("--script writes what --dry-run shows: give both")
    start = Start(resume=options.resume, as_json=options.json, ignore_plan=options.ignore_plan, ends_at=options.ends_at)
    if options.dry_run:
        recipe, folder = _chosen(options.overrides, resume=start.resume)
        if start.resume:
            changes(recipe, folder)
        else:
            require_usable(folder)
        require_agent(recipe)
        require_sandbox(recipe)
        _say_what_is_missing(recipe)
        return _show(engine_of(recipe), recipe, folder, options)
    return (_resume if start.resume else _begin)(options, start)


def _begin(options: argparse.Namespace, start: Start) -> int:
    recipe, folder = _chosen(options.overrides, resume=False)
    require_new(folder)
    _require_data(recipe, start)
    comparison = check_overlap(recipe)
    _check(recipe, start, options)  # before a folder is made that would be in the way of the corrected command
    make_folder(folder)
    with attempt_with_status(folder) as attempt:
        record_overlap(comparison, create_run(recipe))
        return _train(recipe, folder, replace(start, attempt=attempt))


def _resume(options: argparse.Namespace, start: Start) -> int:
    recipe, folder = _chosen(options.overrides, resume=True)
    require_ended(folder / ATTEMPTS)
    changes(recipe, folder)
    _require_data(recipe, start)
    _check(recipe, start, options)
    with attempt_with_status(folder) as attempt:
        require_same(recipe, folder)
        return _train(recipe, folder, replace(start, attempt=attempt))


def _require_data(recipe: Recipe, start: Start) -> None:
    """Raise `UserError` where the agent or sandbox can't be used, or tasks are missing, with what the engine misses.

    Images that are missing are only noted: they come as the run meets them.
    """
    require_agent(recipe)
    require_sandbox(recipe)
    tasks, missing = read_sets(recipe)
    if missing:
        raise UserError("\n".join([not_here(missing), *_missed_by_engine(recipe, start)]))
    _note(missing_images(recipe, tasks))
    _note(left_out(recipe))


def _missed_by_engine(recipe: Recipe, start: Start) -> list[str]:
    try:
        engine_of(recipe).check(recipe, start)
    except NotFetched:  # some engines read the tasks too
        return []
    except UserError as error:
        return [str(error)]
    return []


def _say_what_is_missing(recipe: Recipe) -> None:
    """Note the plug-ins, tasks and images that are missing, for a dry run, which needs none of them."""
    try:
        require_plug_ins(recipe)
    except UserError as error:
        _note(str(error))
    try:
        tasks, missing = read_sets(recipe)
        _note(not_here(missing) if missing else missing_images(recipe, tasks))
    except UserError as error:
        _note(str(error))


def _note(sentence: str) -> None:
    if sentence:
        print(f"note: {sentence}", file=sys.stderr)


def _check(recipe: Recipe, start: Start, options: argparse.Namespace) -> None:
    require_plug_ins(recipe)
    engine_of(recipe).check(recipe, start)
    if recipe.warm_start.data and not start.resume:
        require_trainable(engine_of(recipe), recipe)
    check_integrity(recipe, ignore=options.ignore_integrity)
    check_rehearsal(recipe, skip=options.no_rehearsal)


def _train(recipe: Recipe, folder: Path, start: Start) -> int:
    assert start.attempt is not None
    engine = engine_of(recipe)
    try:
        with stopping_when_asked(folder, start.ends_at):
            if recipe.warm_start.data:
                recipe = run_stage(engine, recipe, folder, start)
            code = engine.run(recipe, folder, start)
        raise_if_stopped(code)
        record_end(folder, start.attempt, code)
        return code
    except (KeyboardInterrupt, StoppedToResume):
        with suppress(OSError):  # a terminal that was closed
            print(f"\nTo go on: {to_go_on(recipe)}", file=sys.stderr, flush=True)
        raise


def _chosen(given: list[str], *, resume: bool) -> tuple[Recipe, Path]:
    """Return the recipe and the folder of its run, which is not there yet where the run is a fresh one."""
    if not resume:
        recipe = with_name(resolve(DEFAULT_RECIPE, given))
        return recipe, Path(recipe.run.dir) / recipe.run.name
    folder = find_run(value_of("run.name", given, ""), value_of("run.dir", given, "runs"))
    return resolve(str(folder / RECIPE_FILE), given), folder


def _show(engine: Engine, recipe: Recipe, folder: Path, options: argparse.Namespace) -> int:
    if recipe.warm_start.data:
        _note(f"a supervised stage in {folder / FOLDER} comes first, with whose weights this command then begins")
    job = engine.job(recipe, folder, resume=options.resume)
    if options.script:
        with writing(Path(options.script)):
            Path(options.script).write_text(script(job), encoding="utf-8")
    if options.json:
        print_json(document(job))
    elif not options.script:
        print(readable(job), end="")
    return 0
