"""A Qwen2's forward pass in which every matrix product is exact, so that server and trainer get the same bits from it.

Float64 and without gradients. Everything but products is computed element by element or row by row. Letters: T rows,
H hidden, K key/value heads, G query heads per key/value head, D head dimension, L positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.exact import BITS, grid, snap, snap_to
from slime_swe.embedded.fused import interleaved
from slime_swe.embedded.model import Layer, ModelConfig, Qwen2, rope_tables

# The attention weights of one query add up to 1, so they are rounded to multiples of 2**-BITS.
WEIGHT_GRID = 1.5 * 2 ** (52 - BITS)
PIECE = 64  # tokens: longer runs are cut, so that the scores of one stay in a core's cache


@dataclass(frozen=True)
class ExactLayer:
    """One layer's weights as they are multiplied, snapped: norms and score scale folded in, projections joined.

    `value_grid` [K, D] is what values are rounded with: they are added up over positions, which must share a grid.
    """

    qkv: Tensor
    qkv_bias: Tensor
    value_grid: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def build(cls, layer: Layer, config: ModelConfig) -> ExactLayer:
        attention, mlp, dim = layer.self_attn, layer.mlp, config.head_dim
        query, key, value = (
            (part.weight.double(), part.bias.double())
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = ((interleaved(weight, dim), interleaved(bias, dim)) for weight, bias in (query, key))
        scale = 1 / math.sqrt(dim)
        qkv = snap(torch.cat((query[0] * scale, key[0], value[0])) * layer.input_layernorm.weight)
        longest = math.sqrt(config.hidden_size) * torch.linalg.vector_norm(qkv[-len(value[0]) :], dim=-1)
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).double()
        return cls(
            qkv=qkv,
            qkv_bias=torch.cat((query[1] * scale, key[1], value[1])),
            value_grid=grid(longest + value[1].abs()).view(-1, dim),
            out=snap(attention.o_proj.weight.double()),
            gate_up=snap(gate_up * layer.post_attention_layernorm.weight),
            down=snap(mlp.down_proj.weight.double()),
        )


class ExactModel:
    """The weights of a Qwen2 as they were when it was made, and the arithmetic of its layers but for attention's."""

    @torch.no_grad()
    def __init__(self, model: Qwen2) -> None:
        self.config = model.config
        self.groups = self.config.num_attention_heads // self.config.num_key_value_heads
        self.embedding = model.model.embed_tokens.weight.double()
        # A normed vector is no longer than this, and all but as long.
        self.norm_grid = grid(self.embedding.new_full((1,), math.sqrt(self.config.hidden_size)))
        self.layers = [ExactLayer.build(cast(Layer, layer), self.config) for layer in model.model.layers]
        self.head = snap(model.head_weight.double() * model.model.norm.weight)

    def turns(self, positions: Tensor) -> Tensor:
        """Rotary embeddings' complex numbers [T, 1, D / 2]."""
        return torch.complex(*rope_tables(positions, self.config, torch.float64))

    def project(self, layer: ExactLayer, x_TxH: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, K × G, D], keys and values [T, K, D]."""
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        heads = self.config.num_attention_heads
        qkv = F.linear(self._norm(x_TxH), layer.qkv).add_(layer.qkv_bias).view(len(x_TxH), heads + 2 * kv_heads, dim)
        pairs = qkv[:, : heads + kv_heads].view(len(x_TxH), heads + kv_heads, dim // 2, 2)
        torch.view_as_complex(pairs).mul_(turns)
        turned, value = snap(qkv[:, : heads + kv_heads]), qkv[:, heads + kv_heads :]
        return turned[:, :heads], turned[:, heads:], snap_to(value, layer.value_grid)

    def finish(self, layer: ExactLayer, x_TxH: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its input and what attention gives, [T, K × G × D]."""
        x_TxH = x_TxH + F.linear(snap(attended), layer.out)
        gate, up = F.linear(self._norm(x_TxH), layer.gate_up).chunk(2, dim=-1)
        return x_TxH.add_(F.linear(snap(F.silu(gate).mul_(up)), layer.down))

    def logits(self, x_TxH: Tensor) -> Tensor:
        """[T, V] from the last layer's output."""
        return F.linear(self._norm(x_TxH), self.head)

    def _norm(self, x_TxH: Tensor) -> Tensor:
        normed = F.rms_norm(x_TxH, (self.config.hidden_size,), None, self.config.rms_norm_eps)
        return snap_to(normed, self.norm_grid)


def attention(
    query_TxQxD: Tensor, lengths: Sequence[int], contexts: Iterable[tuple[np.ndarray, np.ndarray]], groups: int
) -> Tensor:
    """Attention [T, K × G × D] of runs of tokens laid end to end, one run at a time.

    `lengths` are the runs' own, `contexts` their keys and values [K, L, D], which end with those of the run. A loop
    reads exactly the context that a run has; one product over all would read as many as the longest has. NumPy's
    products are as exact as PyTorch's.
    """
    (count, heads, dim), start = query_TxQxD.shape, 0
    query = query_TxQxD.view(count, heads // groups, groups, dim).transpose(0, 1).flatten(1, 2).numpy()
    out = np.empty_like(query)
    for length, (keys, values) in zip(lengths, contexts, strict=True):
        before = keys.shape[1] - length
        for place in range(0, length, PIECE):
            end = min(place + PIECE, length)
            rows, seen = slice((start + place) * groups, (start + end) * groups), slice(before + end)
            _attend(query[:, rows], keys[:, seen], values[:, seen], groups, out[:, rows])
        start += length
    return torch.from_numpy(out).view(len(out), count, -1).transpose(0, 1).flatten(1)


def _attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, groups: int, out: np.ndarray) -> None:
    """Attention of the last T tokens of a context: `query` and `out` are [K, T × G, D]."""
    tokens = query.shape[1] // groups
    scores = np.matmul(query, keys.swapaxes(1, 2))
    if tokens > 1:
        scores[:, :, -tokens:] += _causal(tokens, groups)
    weights = torch.softmax(torch.from_numpy(scores), -1).numpy()
    weights += WEIGHT_GRID
    weights -= WEIGHT_GRID
    np.matmul(weights, values, out=out)


@lru_cache
def _causal(tokens: int, groups: int) -> np.ndarray:
    """[T × G, T]: -inf for tokens after a query's own, else 0."""
    return np.triu(np.full((tokens, tokens), -np.inf), 1).repeat(groups, axis=0)
