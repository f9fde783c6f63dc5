"""Where things lie in the folder of a run under SLiME, and how its journals go back to the newest checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_swe.rollout.records import EPISODES, EVALUATIONS

TRACKER = "latest_checkpointed_iteration.txt"  # Megatron's own name: it takes no folder for a checkpoint without it


@dataclass(frozen=True)
class RunPaths:
    """run: the run's folder, absolute."""

    run: Path

    @property
    def checkpoints(self) -> Path:
        """Megatron's checkpoints, and the data source's state of each."""
        return self.run / "checkpoints"

    @property
    def exports(self) -> Path:
        """The same weights in Hugging Face format, one folder a rollout."""
        return self.run / "exports"

    @property
    def weights(self) -> Path:
        """The newest weights in Hugging Face format, for as long as external engines load them."""
        return self.run / "weights"

    @property
    def settings(self) -> Path:
        """What SLiME has no flag for, read by `--custom-config-path`."""
        return self.run / "slime" / "settings.yaml"

    @property
    def evaluation(self) -> Path:
        """The evaluation sets, read by `--eval-config`."""
        return self.run / "slime" / "evaluation.yaml"

    @property
    def tensorboard(self) -> Path:
        return self.run / "tensorboard"

    def prompts(self, number: int) -> Path:
        """The tasks of one evaluation set."""
        return self.run / "slime" / f"evaluation_{number}.jsonl"


def cut_back(paths: RunPaths) -> None:
    """Leave in each journal of a resumed run the rollouts that the newest checkpoint has seen, since the others will be
    played again: none where there is no checkpoint.

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
