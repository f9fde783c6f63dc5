"""Old checkpoints and exports of a run under SLiME, which removes none by itself."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson

from slime_swe.fields import Meta, read_arguments
from slime_swe.rollout.records import METRICS

METADATA = ".metadata"  # torch.distributed.checkpoint writes it last
TRACKER = "latest_checkpointed_iteration.txt"  # Megatron's own name: it takes no folder for a checkpoint without it
INDEX = "model.safetensors.index.json"  # SLiME writes it last into an export
_CHECKPOINT = re.compile(r"iter_(\d{7,})\Z")
_EXPORT = re.compile(r"(\d+)\Z")
_GOING = ".removed-"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Settings:
    save: str | None = None
    save_hf: str | None = None  # a folder for each rollout: `.../{rollout_id}`
    swe_keep_checkpoints: Annotated[int, Meta(ge=0)] = 0
    swe_keep_exports: Annotated[int, Meta(ge=0)] = 0
    swe_keep_best: str = ""
    swe_run_dir: str = ""
    swe_version_lag: Annotated[int, Meta(ge=0)] = 0


def remove_old(args: Any, rollout_id: int) -> None:
    """Remove, before rollout `rollout_id` is sampled, all but the newest `run.keep_checkpoints` and `run.keep_exports`
    that are whole, and those of the best rollout (`run.keep_best`); 0 removes none.

    A checkpoint counts once Megatron's tracker has come to it, which takes an asynchronous save longer, and once SLiME
    has saved the data source's state of it: that of the rollout before this one, or of the one before that where the
    next is sampled while one is trained. A resumed run needs both. Nothing newer is touched, as it may still be
    written. Older ones that were never whole go with the rest. What is left half removed by a crash goes the next time.
    A folder that can't be removed is named in the log, and the run goes on.
    """
    settings = read_arguments(_Settings, args)
    settled = rollout_id - 1 - settings.swe_version_lag
    best = best_rollout(Path(settings.swe_run_dir), settings.swe_keep_best)
    if settings.save and settings.swe_keep_checkpoints:
        newest = min(settled, last_saved(Path(settings.save), unreadable=-1))
        _keep(Path(settings.save), _CHECKPOINT, newest, settings.swe_keep_checkpoints, best, lambda path: True)
    if settings.save_hf and settings.swe_keep_exports:
        folder = Path(settings.save_hf).parent
        whole = _EXPORT, settled, settings.swe_keep_exports, best, lambda path: (path / INDEX).is_file()
        _keep(folder, *whole)


def best_rollout(run: Path, name: str) -> int | None:
    """Return the rollout after which most episodes of the evaluation set `name` solved their task, by the run's own
    figures.

    Of equal ones the first, so that a checkpoint goes only for one that did better. None where the set has not been
    evaluated after a rollout yet, and without a name. Of an evaluation that two attempts made the last one counts.
    """
    if not name:
        return None
    rates = dict[int, float]()
    for record in _records(run / METRICS):
        if record["kind"] == "eval" and record["name"] == name and record["rollout_id"] >= 0:
            if record["solve_rate"] is None:  # infrastructure broke every episode
                rates.pop(record["rollout_id"], None)
            else:
                rates[record["rollout_id"]] = record["solve_rate"]
    return max(sorted(rates), key=lambda rollout: rates[rollout], default=None)


def _records(path: Path) -> list[dict[str, Any]]:
    """Read all whole lines of a journal."""
    *lines, _ = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    return [orjson.loads(line) for line in lines]


def last_saved(checkpoints: Path, *, unreadable: int) -> int:
    """Return the rollout after which Megatron saved the newest checkpoint; -1 where there is none.

    `unreadable` stands for another text: Megatron writes the file in place, and it is empty for a moment.
    """
    tracker = checkpoints / TRACKER
    if not tracker.is_file():
        return -1
    text = tracker.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else unreadable


def saved(checkpoints: Path) -> dict[int, Path]:
    """Find the folders of the checkpoints that are whole, by rollout."""
    return {number: path for number, path in _numbered(checkpoints, _CHECKPOINT).items() if (path / METADATA).is_file()}


def _numbered(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    return {int(match[1]): path for path in folder.iterdir() if (match := name.match(path.name))}


def _keep(
    folder: Path, name: re.Pattern[str], newest: int, keep: int, best: int | None, whole: Callable[[Path], bool]
) -> None:
    """Remove what is older than the newest `keep` whole ones up to the number `newest`, except `best`."""
    if not folder.is_dir():
        return
    for left in folder.glob(f"{_GOING}*"):
        shutil.rmtree(left, ignore_errors=True)
    there = _numbered(folder, name)
    kept = sorted((number for number, path in there.items() if number <= newest and whole(path)), reverse=True)[:keep]
    if len(kept) == keep:
        for number in sorted(number for number in there if number < kept[-1] and number != best):
            _remove(there[number])


def _remove(path: Path) -> None:
    """Remove a folder, under another name first, so that a crash leaves nothing that looks whole."""
    going = path.with_name(f"{_GOING}{path.name}")
    try:
        path.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        _log.warning("can't remove %s: %s", path, error.strerror or error)
