"""What SLiME dumps for debugging: the samples of a rollout, and what a training step had of each.

Sources: SLiME `observability/rollout_data_utils.py`, `observability/train_data_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROLLOUTS, STEPS = "dumps/rollout_{rollout_id}.pt", "dumps/step_{rollout_id}.pt"  # below a run's folder


@dataclass(frozen=True)
class Rolled:
    """One sample of a rollout. Masks and log-probabilities are of the response's R tokens.

    spans: weight version -> number of tokens, over the response; None where nothing was sampled.
    experts: that the server's router chose for each token but the last, (T - 1) x L x chosen; None without.
    """

    index: int
    group: int
    trajectory: int
    tokens: list[int]
    length: int
    mask_R: list[int]
    log_probs_R: list[float]
    reward: float
    removed: bool
    spans: tuple[tuple[str | None, int], ...]
    experts: Tensor | None

    @property
    def sampled(self) -> Tensor:
        """Places in the response that the policy sampled, in order."""
        return torch.tensor(self.mask_R).nonzero()[:, 0]

    def versions_R(self) -> list[str | None]:
        return [version for version, count in self.spans for _ in range(count)]


@dataclass(frozen=True)
class Trained:
    """What the trainer had of one sample, in the order of the rollout's dump."""

    tokens: list[int]
    log_probs_R: Tensor
    rollout_log_probs_R: Tensor
    advantages_R: Tensor
    mask_R: list[int]
    mask_sum: float
    raw_reward: float


@dataclass(frozen=True)
class Shard:
    """What one data-parallel rank had: places of its samples in the rollout's dump; its micro-batches, of these."""

    places: list[int]
    micro_batches: list[list[int]]


@dataclass(frozen=True)
class Step:
    """A training step. batch_sizes: episodes of each optimizer step, as SLiME divides by them."""

    samples: list[Trained]
    shards: list[Shard]
    batch_sizes: list[int]


def read_rollouts(run: Path) -> list[list[Rolled]]:
    return [[_rolled(sample) for sample in dump["samples"]] for dump in _dumps(run, ROLLOUTS)]


def read_steps(run: Path) -> dict[int, Step]:
    """By number of the rollout that the step trained on."""
    return {int(dump["rollout_id"]): _step(dump) for dump in _dumps(run, STEPS)}


def dump_paths(run: Path, pattern: str) -> dict[int, Path]:
    """Number of a rollout -> its file, in their order, of `ROLLOUTS` or `STEPS`."""
    start, _, end = Path(pattern).name.partition("{rollout_id}")
    paths = (run / pattern).parent.glob(f"{start}*{end}")
    found = {path.name[len(start) : -len(end)]: path for path in paths}
    return dict(sorted((int(number), path) for number, path in found.items() if number.isdigit()))


def _dumps(run: Path, pattern: str) -> Iterator[Mapping[str, Any]]:
    """Those of rollouts, by number."""
    for path in dump_paths(run, pattern).values():
        yield torch.load(path, map_location="cpu", weights_only=False)


def _rolled(sample: Mapping[str, Any]) -> Rolled:
    experts = sample.get("rollout_routed_experts")
    index = int(sample["index"])
    return Rolled(
        index=index,
        group=int(sample["group_index"]),
        trajectory=index if sample.get("rollout_id") is None else int(sample["rollout_id"]),
        tokens=[int(token) for token in sample["tokens"]],
        length=int(sample["response_length"]),
        mask_R=[int(bit) for bit in sample["loss_mask"]],
        log_probs_R=[float(value) for value in sample["rollout_log_probs"]],
        reward=float(sample["reward"]),
        removed=bool(sample["remove_sample"]),
        spans=tuple((version, int(count)) for version, count in sample["metadata"]["version_spans"]),
        experts=None if experts is None else torch.as_tensor(experts),
    )


def _step(dump: Mapping[str, Any]) -> Step:
    raw: Sequence[float] = dump["raw_reward"]
    return Step(
        [_trained(sample, raw[place]) for place, sample in enumerate(dump["samples"])],
        [_shard(shard) for shard in dump["dp_shards"]],
        [int(size) for size in dump["dp_shards"][0]["global_batch_sizes"]],
    )


def _trained(sample: Mapping[str, Any], raw_reward: float) -> Trained:
    return Trained(
        tokens=torch.as_tensor(sample["tokens"]).tolist(),
        log_probs_R=torch.as_tensor(sample["log_probs"]).float(),
        rollout_log_probs_R=torch.as_tensor(sample["rollout_log_probs"]).float(),
        advantages_R=torch.as_tensor(sample["advantages"]).float(),
        mask_R=torch.as_tensor(sample["loss_masks"]).int().tolist(),
        mask_sum=float(sample["rollout_mask_sums"]),
        raw_reward=float(raw_reward),
    )


def _shard(shard: Mapping[str, Any]) -> Shard:
    """SLiME numbers a micro-batch's samples within the rank."""
    return Shard(list(shard["partition"]), [[int(place) for place in batch] for batch in shard["micro_batch_indices"]])
