"""The model's forward pass over a tree of shared prefixes, as training needs it.

Attention goes along the tree's paths.
Shapes: T rows of the layout, H hidden, Q query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.exact_forward import ExactModel, attention
from slime_swe.embedded.fused import interleaved, rms_norm, rotate, swiglu
from slime_swe.embedded.model import MLP, Attention, Layer, Qwen2, rope_tables
from slime_swe.embedded.prefix_tree import PrefixTree


def hidden_states(model: Qwen2, tree: PrefixTree, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
    """Hidden states [T, H] after the final norm: of each row what the model gives after the tokens of its path."""
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
    """What `exact` gives [T, H] before the final norm; without gradients."""
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
        """Self-attention's output [T, H], the output projection included."""
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
    """Of each span at (position, length): 0 where a row may look, else -inf; None at position 0, where it is causal.

    Views of one matrix, which has the rows from the first such position on.
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
    """Queries, keys and values [T, heads, D] by one product; those that are rotated come in pairs, not halves."""
    rotated, plain = (own.q_proj, own.k_proj), own.v_proj
    weight = torch.cat([*(interleaved(part.weight, own.head_dim) for part in rotated), plain.weight])
    bias = torch.cat([*(interleaved(part.bias, own.head_dim) for part in rotated), plain.bias])
    heads = [len(part.weight) // own.head_dim for part in (*rotated, plain)]
    projected = F.linear(x_TxH, weight, bias).view(len(x_TxH), -1, own.head_dim)
    return list(projected.split(heads, dim=1))  # type: ignore[no-untyped-call]


def _mlp(own: MLP, x_TxH: Tensor) -> Tensor:
    weight = torch.cat([own.gate_proj.weight, own.up_proj.weight])
    return cast(Tensor, own.down_proj(swiglu(F.linear(x_TxH, weight))))
