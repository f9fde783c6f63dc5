"""Where things lie in the folder of a run under SLiME."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
