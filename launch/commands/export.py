"""Write a run's episodes in the format of another tool.

slime-swe export RUN --to inspect --evaluation heldout --out logs     then: inspect view --log-dir logs
slime-swe export RUN --to messages --solved --out solved.jsonl        for supervised training
slime-swe export RUN --to predictions --evaluation verified --rollout 39 --out patches

RUN is a run's name or folder, or one that `slime-swe eval --output` wrote. Without --evaluation, the episodes are those
of training. Secrets of this process's environment are replaced.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.launch.config import read_recipe
from slime_swe.launch.episodes import RecordedEpisode, add_selection, read_episodes, select
from slime_swe.launch.export import EXPORTERS, ExportedRun, Exporter, exporter_class, require_tokens, require_turns
from slime_swe.launch.extras import require
from slime_swe.launch.output import print_json
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.redaction import secrets_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--to", metavar="FORMAT", required=True, help=f"{', '.join(EXPORTERS)}, or a dotted path")
    parser.add_argument("--out", metavar="PATH", type=Path, required=True, help="a new file or folder")


def run(options: argparse.Namespace) -> int:
    kind = exporter_class(options.to)
    folder = find_run(options.run, options.dir)
    require(*kind.packages, extra=kind.extra)
    if options.out.exists() or options.out.is_symlink():
        raise UserError(f"--out {options.out} is there already: give a new path, or remove it")
    written, left_out = _export(kind, folder, options)
    if options.json:
        print_json({"path": str(options.out), "episodes": written, "left_out": left_out})
    else:
        rest = f", and {left_out} left out that infrastructure broke or that say nothing" if left_out else ""
        print(f"{written} episodes written{rest}\n{kind.opened.format(path=options.out)}")
    return 0


def _export(kind: type[Exporter], folder: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Write the export under a partial name and rename it when it is whole.

    Returns how many episodes were written and how many were left out. Raises `UserError` where none was written.
    """
    journal, selected = select(folder, options)
    secrets = secrets_of(os.environ)
    partial = options.out.with_name(f".{options.out.name}.partial")
    written = left_out = 0
    try:
        with writing(options.out):
            _clear(partial)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            if kind.is_folder:
                partial.mkdir()
            exporter = kind(partial, ExportedRun.of(folder, read_recipe(folder / RECIPE_FILE), secrets))
            for episode in read_episodes(folder, journal, selected, secrets):
                if kind.has_messages:
                    require_turns(episode, journal)
                if kind.needs_tokens:
                    require_tokens(episode, journal)
                if not _takes(kind, episode):
                    left_out += 1
                    continue
                exporter.add(episode)
                written += 1
            exporter.close()
            if not written:
                raise UserError(_nothing(journal, options, left_out))
            partial.rename(options.out)
    finally:
        _clear(partial)
    return written, left_out


def _takes(kind: type[Exporter], episode: RecordedEpisode) -> bool:
    return (kind.takes_broken or not episode.first.broken) and (kind.takes_silent or bool(episode.turns))


def _nothing(journal: Path, options: argparse.Namespace, left_out: int) -> str:
    if left_out:
        return f"all {left_out} episodes of {journal} that match were broken by infrastructure, or say nothing"
    return f"no episode in {journal} matches: `slime-swe episodes {options.run} --list` shows what there is"


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
