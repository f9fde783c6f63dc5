"""Journals of a resumed run: what was written after its newest checkpoint is dropped, since it will be played again."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from slime_swe.launch.slime.paths import TRACKER, RunPaths
from slime_swe.rollout.records import EPISODES, EVALUATIONS


def cut_back(paths: RunPaths) -> None:
    """Leave in each journal the rollouts that the newest checkpoint has seen: none where there is no checkpoint.

    SLiME's evaluation before the first rollout is numbered 0 too. It is kept with a checkpoint and made again without.
    """
    last = last_saved(paths.checkpoints)
    for path in (paths.run / EPISODES, paths.run / EVALUATIONS):
        if path.exists():
            os.truncate(path, _bytes_up_to(path, last))


def last_saved(checkpoints: Path) -> int:
    """The rollout after which Megatron saved the newest checkpoint; -1 where there is none."""
    tracker = checkpoints / TRACKER
    return int(tracker.read_text(encoding="ascii")) if tracker.is_file() else -1


def _bytes_up_to(path: Path, last: int) -> int:
    """Bytes of the lines before the first of a later rollout, or before one that was cut short."""
    size = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or orjson.loads(line)["rollout_id"] > last:
                break
            size += len(line)
    return size
