"""Micro-batches: from training data to the log-probabilities of the sampled tokens in them.

Shapes: T rows of the layout, N sampled tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from slime_swe.embedded.logprobs import action_log_probs
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.packing import pack
from slime_swe.embedded.prefix_tree import PrefixTree
from slime_swe.embedded.train_data import TrainData
from slime_swe.embedded.tree_forward import hidden_states
from slime_swe.embedded.workers import ordered_map

# Of an optimizer step, where sequences are short enough. Not the number of cores: the order of sums would depend on it.
CPU_MICRO_BATCHES = 8


@dataclass(frozen=True)
class MicroBatch:
    """Sequences as a tree of shared prefixes, each cut after its last sampled token, and where the policy acted.

    `row_N` is the row whose hidden state predicts the sampled `target_N`; `source_N` is (sample, place in its
    response) of each, in the order of the tensors.
    """

    tree: PrefixTree
    tokens_T: Tensor
    positions_T: Tensor
    row_N: Tensor
    target_N: Tensor
    source_N: list[tuple[int, int]]


def micro_batches(
    data: TrainData, samples: Sequence[int], max_tokens: int, device: torch.device | str = "cpu"
) -> list[MicroBatch]:
    """Pack those of `samples` that have trained tokens into micro-batches of at most `max_tokens` rows.

    On a CPU they are smaller where there is little to do, so that every core gets some.
    """
    inputs = [data.tokens[sample][: input_length(data, sample)] for sample in samples]
    if torch.device(device).type == "cpu":
        lengths = [len(tokens) for tokens in inputs]
        max_tokens = min(max_tokens, max(sum(lengths) // CPU_MICRO_BATCHES, *lengths, 1)) if lengths else max_tokens
    return [_collate(data, samples, tree, device) for tree in pack(inputs, max_tokens)]


def input_length(data: TrainData, sample: int) -> int:
    """Tokens of the sample that a trained token depends on; 0 where none is trained."""
    mask = data.loss_masks[sample]
    prompt = len(data.tokens[sample]) - len(mask)
    return next((prompt + place for place in range(len(mask) - 1, -1, -1) if mask[place]), 0)


def _collate(data: TrainData, samples: Sequence[int], tree: PrefixTree, device: torch.device | str) -> MicroBatch:
    row_N: list[int] = []
    target_N: list[int] = []
    source_N: list[tuple[int, int]] = []
    for member, rows in zip(tree.members, tree.rows, strict=True):
        sample = samples[member]
        tokens, mask = data.tokens[sample], data.loss_masks[sample]
        prompt = len(tokens) - len(mask)
        places = [place for place, trained in enumerate(mask) if trained]
        row_N += [rows[prompt + place - 1] for place in places]
        target_N += [tokens[prompt + place] for place in places]
        source_N += [(sample, place) for place in places]
    positions = chain.from_iterable(range(span.position, span.position + span.length) for span in tree.spans)
    return MicroBatch(
        tree=tree,
        tokens_T=torch.tensor(tree.tokens, device=device),
        positions_T=torch.tensor(list(positions), device=device),
        row_N=torch.tensor(row_N, device=device),
        target_N=torch.tensor(target_N, device=device),
        source_N=source_N,
    )


def forward(model: Qwen2, batch: MicroBatch, temperature: float) -> tuple[Tensor, ...]:
    """(log-probability [N], entropy [N]) of the batch's sampled tokens at the sampling temperature."""
    hidden_TxH = hidden_states(model, batch.tree, batch.tokens_T, batch.positions_T)
    return action_log_probs(hidden_TxH.index_select(0, batch.row_N), model.head_weight, batch.target_N, temperature)


def recompute_log_probs(
    model: Qwen2, data: TrainData, temperature: float, max_tokens: int, workers: int = 1
) -> list[list[float]]:
    """The model's own log-probability of every trained token, in the layout of `data.rollout_log_probs`, else 0.0."""

    @torch.no_grad()
    def work(batch: MicroBatch) -> list[float]:
        values: list[float] = forward(model, batch, temperature)[0].tolist()
        return values

    result = [[0.0] * len(mask) for mask in data.loss_masks]
    batches = micro_batches(data, range(len(data)), max_tokens, model.head_weight.device)
    for batch, log_probs_N in zip(batches, ordered_map(work, batches, workers), strict=True):
        for (sample, place), value in zip(batch.source_N, log_probs_N, strict=True):
            result[sample][place] = value
    return result
