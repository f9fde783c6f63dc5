"""Micro-batches: from training data to the log-probabilities of the sampled tokens in them.

Shapes: T rows of the layout, N sampled tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.exact_forward import ExactModel, attention
from slime_swe.embedded.model import MLP, Attention, Layer, Qwen2, interleaved, rope_tables
from slime_swe.embedded.sampling import log_probs_of
from slime_swe.embedded.train_data import PrefixTree, TrainData, pack
from slime_swe.embedded.workers import ordered_map

# An optimizer step has about as many, where sequences are short enough. It is not the number of cores, on which the
# order of sums would then depend.
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
    """Return how many tokens of the sample a trained token depends on; 0 where none is trained."""
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
    """Return (log-probability [N], entropy [N]) of the batch's sampled tokens at the sampling temperature."""
    hidden_TxH = hidden_states(model, batch.tree, batch.tokens_T, batch.positions_T)
    return action_log_probs(hidden_TxH.index_select(0, batch.row_N), model.head_weight, batch.target_N, temperature)


# Log-probability and entropy of sampled tokens, without ever holding more than one chunk of [N, vocabulary].
CHUNK_ELEMENTS = 1 << 20  # logits held at once: 4 MB of fp32, about what a core's cache and a GPU's launch cost favour


def action_log_probs(hidden_NxH: Tensor, head_VxH: Tensor, target_N: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """Return (log-probability [N], entropy [N]) of `target_N` under softmax(hidden @ head.T / temperature), in fp32.

    The server samples from the same distribution and reports it. Both results carry gradients to `hidden_NxH` and
    `head_VxH`; logits are recomputed in the backward pass.
    """
    result = _ActionLogProbs.apply(hidden_NxH, head_VxH, target_N, temperature)  # type: ignore[no-untyped-call]
    return tuple(result)


class _ActionLogProbs(torch.autograd.Function):
    """Gradients are d log p_t = onehot_t - p;  d entropy = -p (log p + entropy); both divided by the temperature."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(target), dtype=torch.promote_types(hidden.dtype, torch.float32))
        entropy = torch.empty_like(log_probs)
        for rows in _chunks(len(target), len(head)):
            full = _log_softmax(hidden[rows], head, temperature)
            log_probs[rows] = full.gather(1, target[rows, None]).squeeze(1)
            entropy[rows] = -(full.exp() * full).sum(1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, head, target, entropy)
        ctx.temperature = temperature
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, target, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = grads
        if of_log_prob is None:
            of_log_prob = torch.zeros_like(entropy)
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head)
        for rows in _chunks(len(target), len(head)):
            full = _log_softmax(hidden[rows], head, ctx.temperature)
            scale = of_log_prob[rows, None]
            if of_entropy is not None:
                scale = scale + of_entropy[rows, None] * (full + entropy[rows, None])
            grad_logits = (full.exp_() if of_entropy is None else full.exp()).mul_(-scale)
            grad_logits.scatter_add_(1, target[rows, None], of_log_prob[rows, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = grad_logits @ head
            grad_head.addmm_(grad_logits.T, hidden[rows])
        return grad_hidden, grad_head, None, None


def _log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = hidden @ head.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits.div_(temperature), 1)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def recompute_log_probs(
    model: Qwen2, data: TrainData, samples: Sequence[int], temperature: float, max_tokens: int, workers: int = 1
) -> list[list[float]]:
    """Compute the log-probability of every trained token of `samples`, laid out as `data.rollout_log_probs`, else 0.0.

    They are to the last bit those that the server gives: the same exact forward pass, over trees instead of a cache.
    """
    exact = ExactModel(model)

    @torch.inference_mode()
    def work(batch: MicroBatch) -> list[float]:
        hidden_NxH = exact_hidden_states(exact, batch.tree, batch.tokens_T, batch.positions_T)[batch.row_N]
        parts = zip(*(torch.split(part, ROWS) for part in (hidden_NxH, batch.target_N)), strict=True)
        logits = ((exact.logits(rows) / temperature, target) for rows, target in parts)
        return [value for rows, target in logits for value in log_probs_of(rows, rows.softmax(-1), target)]

    result = [[0.0] * len(mask) for mask in data.loss_masks]
    batches = micro_batches(data, samples, max_tokens)
    for batch, log_probs_N in zip(batches, ordered_map(work, batches, workers), strict=True):
        for (sample, place), value in zip(batch.source_N, log_probs_N, strict=True):
            result[sample][place] = value
    return result


# The model's forward pass over a tree of shared prefixes, as training needs it.
#
# Attention goes along the tree's paths. Shapes: T rows of the layout, H hidden, Q query heads, K key/value heads, D
# head dimension.
def hidden_states(model: Qwen2, tree: PrefixTree, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
    """Return the hidden states [T, H] after the final norm: a row's is the model's after the tokens of its path."""
    turn = torch.complex(*rope_tables(positions_T, model.config, torch.float32))
    attention, eps = TreeAttention(tree, model.head_weight), model.config.rms_norm_eps
    x_TxH: Tensor = model.model.embed_tokens(tokens_T)
    for layer in cast("list[Layer]", model.model.layers):
        normed = rms_norm(x_TxH, layer.input_layernorm.weight, eps)
        x_TxH = x_TxH + attention(layer.self_attn, normed, turn)
        normed = rms_norm(x_TxH, layer.post_attention_layernorm.weight, eps)
        x_TxH = x_TxH + _mlp(layer.mlp, normed)
    return rms_norm(x_TxH, model.model.norm.weight, eps)


def exact_hidden_states(exact: ExactModel, tree: PrefixTree, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
    """Return what `exact` gives [T, H] before the final norm; without gradients."""
    turns, lengths = exact.turns(positions_T), [span.length for span in tree.spans]
    paths = [[*tree.ancestors(index), index] for index in range(len(tree.spans))]
    x_TxH = exact.embedding[tokens_T]
    for layer in exact.layers:
        query, *projected = exact.project(layer, x_TxH, turns)
        keys, values = (
            [part.numpy() for part in torch.split(whole.transpose(0, 1), lengths, 1)] for whole in projected
        )
        contexts = (
            (np.concatenate([keys[i] for i in path], axis=1), np.concatenate([values[i] for i in path], axis=1))
            for path in paths
        )
        x_TxH = exact.finish(layer, x_TxH, attention(query, lengths, contexts, exact.groups))
    return x_TxH


class TreeAttention:
    """Each span attends to its ancestors' rows in full, and to its own causally."""

    def __init__(self, tree: PrefixTree, like: Tensor) -> None:
        self.lengths = [span.length for span in tree.spans]
        self.paths = [[*tree.ancestors(index), index] for index in range(len(tree.spans))]
        self.starts = [span.position for span in tree.spans]
        self.masks = _masks([(span.position, span.length) for span in tree.spans], like)

    def __call__(self, own: Attention, x_TxH: Tensor, turn: Tensor) -> Tensor:
        """Return self-attention's output [T, H], the output projection included."""
        q_TxQxD, k_TxKxD, v_TxKxD = _project(own, x_TxH)
        queries, keys = self._split(rotate(q_TxQxD, turn)), self._split(rotate(k_TxKxD, turn))
        values = self._split(v_TxKxD)
        outputs = [self._span(index, query, keys, values) for index, query in enumerate(queries)]
        return cast(Tensor, own.o_proj(torch.cat(outputs).flatten(-2)))

    def _split(self, x_TxQxD: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x_TxQxD.transpose(0, 1), self.lengths, 1)

    def _span(self, index: int, query: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> Tensor:
        path, start = self.paths[index], self.starts[index]
        k, v = (torch.cat([part[i] for i in path], dim=1) if start else part[index] for part in (keys, values))
        out = F.scaled_dot_product_attention(
            query[None], k[None], v[None], self.masks[index], is_causal=not start, enable_gqa=True
        )
        return out[0].transpose(0, 1)


def _masks(places: Sequence[tuple[int, int]], like: Tensor) -> list[Tensor | None]:
    """Return each span's mask: 0 where a row may look, else -inf; None at position 0, where it is causal. `places` are
    (position, length).

    Masks are views of one matrix, which has the rows from the first position above 0 on.
    """
    inner = [(start, start + length) for start, length in places if start]
    if not inner:
        return [None] * len(places)
    first, longest = min(start for start, _ in inner), max(end for _, end in inner)
    causal = torch.full((longest - first, longest), -torch.inf, dtype=like.dtype).triu(first + 1)
    return [
        causal[start - first : start - first + length, : start + length] if start else None for start, length in places
    ]


def _project(own: Attention, x_TxH: Tensor) -> list[Tensor]:
    """Return queries, keys and values [T, heads, D] by one product; the rotated ones come in pairs, not halves."""
    rotated, plain = (own.q_proj, own.k_proj), own.v_proj
    weight = torch.cat([*(interleaved(part.weight, own.head_dim) for part in rotated), plain.weight])
    bias = torch.cat([*(interleaved(part.bias, own.head_dim) for part in rotated), plain.bias])
    heads = [len(part.weight) // own.head_dim for part in (*rotated, plain)]
    projected = F.linear(x_TxH, weight, bias).view(len(x_TxH), -1, own.head_dim)
    return list(projected.split(heads, dim=1))  # type: ignore[no-untyped-call]


def _mlp(own: MLP, x_TxH: Tensor) -> Tensor:
    weight = torch.cat([own.gate_proj.weight, own.up_proj.weight])
    return cast(Tensor, own.down_proj(swiglu(F.linear(x_TxH, weight))))


# The elementwise parts of a Qwen2 layer with few passes over memory, for training on a CPU.
#
# Composed of plain operations these take as long as the layer's matrix products.
def rms_norm(x_TxH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    return cast(Tensor, _RMSNorm.apply(x_TxH, weight_H, eps))  # type: ignore[no-untyped-call]


def swiglu(gate_up_Tx2F: Tensor) -> Tensor:
    """Return silu(gate) * up [T, F] of the two halves [gate, up] (Shazeer 2020, arXiv:2002.05202)."""
    return cast(Tensor, _SwiGLU.apply(gate_up_Tx2F))  # type: ignore[no-untyped-call]


def rotate(x_TxQxD: Tensor, turn_Tx1xC: Tensor) -> Tensor:
    """Rotate the pairs (2 i, 2 i + 1) of every head by the complex numbers `turn`, C = D / 2."""
    pairs: Tensor = torch.view_as_complex(x_TxQxD.view(*x_TxQxD.shape[:-1], -1, 2))
    turned: Tensor = torch.view_as_real(pairs * turn_Tx1xC)
    return turned.flatten(-2)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_()[:, None]
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        scaled: Tensor = normed * weight
        return scaled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        grad_normed = grads[0] * weight
        along = torch.linalg.vecdot(grad_normed, normed)[:, None].div_(normed.shape[-1])
        grad_weight = (grads[0] * normed).sum(0)
        return grad_normed.addcmul_(normed, along, value=-1).mul_(scale), grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        active = F.silu(gate)
        ctx.save_for_backward(gate_up, active)
        return active * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate_up, active = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(grads[0], active, out=grad_up)
        torch.ops.aten.silu_backward(grads[0] * up, gate, grad_input=grad_gate)
        return result
