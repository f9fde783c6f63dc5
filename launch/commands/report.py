"""Write an HTML page of one run or several: does it learn, and what did each episode do.

slime-swe report first                           writes first.html, or the folder first-report when that is too large
slime-swe report first second --out both.html    two runs in one page, compared
slime-swe report first --tokens all

RUN is a run's name or folder, or one that `slime-swe eval --output` wrote. The page opens from the disk by double-click
and asks nothing of a network. Secrets of this process's environment are replaced.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.launch.output import print_json, visible
from slime_swe.launch.report import Collected, collect, compare_runs
from slime_swe.launch.report.page import DATA, Shards, write_page
from slime_swe.launch.runs import find_run
from slime_swe.redaction import redacted, secrets_of

_TOKENS = ("selected", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="its name or folder; the first one is what others are compared with"
    )
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument(
        "--out", metavar="PATH", type=Path, help="a new file, or folder above 20 MB (default: RUN.html or RUN-report)"
    )
    parser.add_argument(
        "--tokens",
        choices=_TOKENS,
        default="selected",
        help="of failures, informative groups and a random sample, or of all episodes (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    folders = list(dict.fromkeys(find_run(name, options.dir) for name in options.runs))
    if options.out:
        _require_new(options.out)
    anchor = options.out or Path(f"{folders[0].resolve().name}.html")
    partial = anchor.with_name(f".{anchor.name}.partial")
    try:
        with writing(anchor):
            shutil.rmtree(partial, ignore_errors=True)
            (partial / DATA).mkdir(parents=True)
            collected = _collected(folders, partial, all_tokens=options.tokens == "all")
            title = " and ".join(run["name"] for run in collected.runs)
            comparisons = redacted(compare_runs(folders, collected.notes), collected.secrets)
            kept = write_page(partial, title, collected.document(comparisons), collected.shards)
            path = options.out or anchor.with_name(anchor.name if kept.is_file() else f"{anchor.stem}-report")
            _require_new(path)
            kept.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say(path, collected, as_json=options.json)
    return 0


def _collected(folders: list[Path], partial: Path, *, all_tokens: bool) -> Collected:
    collected = Collected(Shards(partial / DATA), secrets_of(os.environ), all_tokens)
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        collect(folder, name if names.count(name) == 1 else str(folder), collected)
    return collected


def _say(path: Path, collected: Collected, *, as_json: bool) -> None:
    opened = path / "index.html" if path.is_dir() else path
    if as_json:
        print_json({"path": str(opened), "episodes": len(collected.rows), "notes": collected.notes})
        return
    for note in collected.notes:
        print(visible(note))
    print(f"{len(collected.rows):,} episodes written\nopen {opened}")


def _require_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} is there already: give --out a new path, or remove it")
