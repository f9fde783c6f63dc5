"""From a rollout's optimizer steps to the lines of `trained.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress

from slime_swe.embedded.train_data import TrainData
from slime_swe.embedded.trainer import Steps
from slime_swe.rollout.trained import TrainedSample


def trained_samples(rollout_id: int, attempt: int, data: TrainData, steps: Steps) -> Iterator[TrainedSample]:
    """Of each sample that has tokens to train."""
    for sample, mask in enumerate(data.loss_masks):
        if not any(mask):
            continue
        log_probs = steps.log_probs.get(sample)
        yield TrainedSample(
            rollout_id=rollout_id,
            index=data.indices[sample],
            advantage=data.advantages[sample],
            log_probs=None if log_probs is None else [*compress(log_probs, mask)],
            step=steps.step_of[sample],
            attempt=attempt,
        )
