"""Micro-batches: from training data to the log-probabilities of the sampled tokens in them.

Shapes: T input tokens of all packed sequences, N sampled tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from embedded.logprobs import action_log_probs
from embedded.model import Qwen2
from embedded.packing import pack
from embedded.train_data import TrainData


@dataclass(frozen=True)
class MicroBatch:
    """Packed sequences, each cut after its last sampled token, and where in them the policy acted.

    `row_N` is the input row whose hidden state predicts the sampled `target_N`; `source_N` is (sample, place in its
    response) of each, in the order of the tensors.
    """

    tokens_T: Tensor
    positions_T: Tensor
    cu_seqlens: list[int]
    row_N: Tensor
    target_N: Tensor
    samples: list[int]
    source_N: list[tuple[int, int]]


def micro_batches(
    data: TrainData, samples: Sequence[int], max_tokens: int, device: torch.device | str = "cpu"
) -> list[MicroBatch]:
    """Pack those of `samples` that have trained tokens into micro-batches of at most `max_tokens` input tokens."""
    lengths = {sample: input_length(data, sample) for sample in samples}
    acting = [sample for sample in samples if lengths[sample]]
    packed = pack([lengths[sample] for sample in acting], max_tokens)
    return [_collate(data, [acting[place] for place in places], lengths, device) for places in packed]


def input_length(data: TrainData, sample: int) -> int:
    """Tokens of the sample that a trained token depends on; 0 where none is trained."""
    mask = data.loss_masks[sample]
    prompt = len(data.tokens[sample]) - len(mask)
    return next((prompt + place for place in range(len(mask) - 1, -1, -1) if mask[place]), 0)


def _collate(data: TrainData, samples: list[int], lengths: dict[int, int], device: torch.device | str) -> MicroBatch:
    tokens: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    targets: list[int] = []
    source: list[tuple[int, int]] = []
    for sample in samples:
        start, whole, mask = len(tokens), data.tokens[sample], data.loss_masks[sample]
        prompt = len(whole) - len(mask)
        places = [place for place, trained in enumerate(mask) if trained]
        rows += [start + prompt + place - 1 for place in places]
        targets += [whole[prompt + place] for place in places]
        source += [(sample, place) for place in places]
        tokens += whole[: lengths[sample]]
        positions += range(lengths[sample])
    return MicroBatch(
        tokens_T=torch.tensor(tokens, device=device),
        positions_T=torch.tensor(positions, device=device),
        cu_seqlens=[0, *accumulate(lengths[sample] for sample in samples)],
        row_N=torch.tensor(rows, device=device),
        target_N=torch.tensor(targets, device=device),
        samples=samples,
        source_N=source,
    )


def forward(model: Qwen2, batch: MicroBatch, temperature: float) -> tuple[Tensor, ...]:
    """(log-probability [N], entropy [N]) of the batch's sampled tokens at the sampling temperature."""
    hidden_TxH = model.forward_packed(batch.tokens_T, batch.positions_T, batch.cu_seqlens)
    return action_log_probs(hidden_TxH.index_select(0, batch.row_N), model.head_weight, batch.target_N, temperature)


def recompute_log_probs(model: Qwen2, data: TrainData, temperature: float, max_tokens: int) -> list[list[float]]:
    """The model's own log-probability of every trained token, in the layout of `data.rollout_log_probs`, else 0.0."""
    result = [[0.0] * len(mask) for mask in data.loss_masks]
    with torch.no_grad():
        for batch in micro_batches(data, range(len(data)), max_tokens, model.head_weight.device):
            log_probs_N = forward(model, batch, temperature)[0].tolist()
            for (sample, place), value in zip(batch.source_N, log_probs_N, strict=True):
                result[sample][place] = value
    return result
