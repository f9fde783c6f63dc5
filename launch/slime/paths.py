"""Where things lie in the folder of a run under SLiME, and how its journals go back to the newest checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from slime_swe.rollout.records import EPISODES, EVALUATIONS

TRACKER = "latest_checkpointed_iteration.txt"  # Megatron's own name: it takes no folder for a checkpoint without it
CHECKPOINTS = "checkpoints"  # Megatron's, and the data source's state of each
EXPORTS = "exports"  # the same weights in Hugging Face format, one folder a rollout
WEIGHTS = "weights"  # the newest weights in Hugging Face format, for as long as external engines load them
SETTINGS = "slime/settings.yaml"  # what SLiME has no flag for, read by `--custom-config-path`
EVALUATION = "slime/evaluation.yaml"  # the evaluation sets, read by `--eval-config`
PROMPTS = "slime/evaluation_{}.jsonl"  # the tasks of one evaluation set
TENSORBOARD = "tensorboard"


def cut_back(run: Path) -> None:
    """Leave in each journal of a resumed run the rollouts that the newest checkpoint has seen, since the others will be
    played again: none where there is no checkpoint.

    SLiME's evaluation before the first rollout is numbered 0 too. It is kept with a checkpoint and made again without.
    """
    last = last_saved(run / CHECKPOINTS)
    for path in (run / EPISODES, run / EVALUATIONS):
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
