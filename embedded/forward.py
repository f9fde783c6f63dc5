"""Micro-batches: from training data to the log-probabilities of the sampled tokens in them.

Shapes: T rows of the layout, N sampled tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from slime_swe.embedded.exact_forward import ExactModel
from slime_swe.embedded.logprobs import action_log_probs
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.packing import pack
from slime_swe.embedded.prefix_tree import PrefixTree
from slime_swe.embedded.train_data import TrainData
from slime_swe.embedded.tree_forward import exact_hidden_states, hidden_states
from slime_swe.embedded.workers import ordered_map

# Of an optimizer step, where sequences are short enough. Not the number of cores: the order of sums would depend on it.
MICRO_BATCHES = 8
ROWS = 256  # whose logits are held at once


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


def micro_batches(data: TrainData, samples: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """Pack those of `samples` that have trained tokens into micro-batches of at most `max_tokens` rows.

    They are smaller where there is little to do, so that every core gets some.
    """
    inputs = [data.tokens[sample][: input_length(data, sample)] for sample in samples]
    lengths = [len(tokens) for tokens in inputs]
    most = min(max_tokens, max(sum(lengths) // MICRO_BATCHES, *lengths, 1)) if lengths else max_tokens
    return [_collate(data, samples, tree) for tree in pack(inputs, most)]


def input_length(data: TrainData, sample: int) -> int:
    """Tokens of the sample that a trained token depends on; 0 where none is trained."""
    mask = data.loss_masks[sample]
    prompt = len(data.tokens[sample]) - len(mask)
    return next((prompt + place for place in range(len(mask) - 1, -1, -1) if mask[place]), 0)


def _collate(data: TrainData, samples: Sequence[int], tree: PrefixTree) -> MicroBatch:
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
        tokens_T=torch.tensor(tree.tokens),
        positions_T=torch.tensor(list(positions)),
        row_N=torch.tensor(row_N),
        target_N=torch.tensor(target_N),
        source_N=source_N,
    )


def forward(model: Qwen2, batch: MicroBatch, temperature: float) -> tuple[Tensor, ...]:
    """(log-probability [N], entropy [N]) of the batch's sampled tokens at the sampling temperature."""
    hidden_TxH = hidden_states(model, batch.tree, batch.tokens_T, batch.positions_T)
    return action_log_probs(hidden_TxH.index_select(0, batch.row_N), model.head_weight, batch.target_N, temperature)


def recompute_log_probs(
    model: Qwen2, data: TrainData, samples: Sequence[int], temperature: float, max_tokens: int, workers: int = 1
) -> list[list[float]]:
    """The model's log-probability of every trained token of `samples`, laid out as `data.rollout_log_probs`, else 0.0.

    To the last bits those that the server gives: the same exact forward pass, over trees instead of a cache.
    """
    exact = ExactModel(model)

    @torch.inference_mode()
    def work(batch: MicroBatch) -> list[float]:
        hidden_NxH = exact_hidden_states(exact, batch.tree, batch.tokens_T, batch.positions_T)[batch.row_N]
        parts = zip(*(torch.split(part, ROWS) for part in (hidden_NxH, batch.target_N)), strict=True)
        return [value for rows, target in parts for value in _log_probs(exact.logits(rows) / temperature, target)]

    result = [[0.0] * len(mask) for mask in data.loss_masks]
    batches = micro_batches(data, samples, max_tokens)
    for batch, log_probs_N in zip(batches, ordered_map(work, batches, workers), strict=True):
        for (sample, place), value in zip(batch.source_N, log_probs_N, strict=True):
            result[sample][place] = value
    return result


def _log_probs(logits_NxV: Tensor, target_N: Tensor) -> list[float]:
    chosen: list[float] = torch.log_softmax(logits_NxV, 1).gather(1, target_N[:, None])[:, 0].tolist()
    return chosen
