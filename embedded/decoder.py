"""The cached forward pass: one step over runs of new tokens, in which a row's bits do not depend on the other rows.

A step takes the next tokens of every running request (decode) and pieces of prompts (prefill) together. Whatever else
is in the batch, and however much of a context was cached, a token's numbers are the same: all matrix products are exact
(`exact.py`), and everything else is computed element by element or row by row. All of it is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.attention import Attention, Span
from slime_swe.embedded.exact import grid, snap, snap_to
from slime_swe.embedded.fused import interleaved
from slime_swe.embedded.kv_cache import KVCache
from slime_swe.embedded.model import Layer, ModelConfig, Qwen2, rope_tables


@dataclass(frozen=True)
class FusedLayer:
    """One layer's weights as the step multiplies them, snapped: norms and score scale folded in, projections joined.

    `value_grid` [K × D] is what values are rounded with: they are added up over positions, which must share a grid.
    """

    qkv: Tensor
    qkv_bias: Tensor
    value_grid: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def build(cls, layer: Layer, config: ModelConfig) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        scale = 1 / math.sqrt(config.head_dim)
        query, key, value = (
            (part.weight.double(), part.bias.double())
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = ((interleaved(w, config.head_dim), interleaved(b, config.head_dim)) for w, b in (query, key))
        qkv = snap(torch.cat((query[0] * scale, key[0], value[0])) * layer.input_layernorm.weight)
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).double()
        longest = math.sqrt(config.hidden_size) * torch.linalg.vector_norm(qkv[-len(value[0]) :], dim=-1)
        return cls(
            qkv=qkv,
            qkv_bias=torch.cat((query[1] * scale, key[1], value[1])),
            value_grid=grid(longest + value[1].abs()),
            out=snap(attention.o_proj.weight.double()),
            gate_up=snap(gate_up * layer.post_attention_layernorm.weight),
            down=snap(mlp.down_proj.weight.double()),
        )


class Decoder:
    """A Qwen2's weights, fused for inference, over a KVCache."""

    def __init__(self, model: Qwen2, cache: KVCache, device: torch.device) -> None:
        self.config = model.config
        self.cache = cache
        self.device = device
        self.turns = torch.complex(*rope_tables(torch.arange(cache.max_length), self.config, torch.float64)).to(device)
        self.load(model)

    @torch.inference_mode()
    def load(self, model: Qwen2) -> None:
        """Take over the weights of `model`, which must have the same architecture."""
        moved = model.to(self.device)
        self.embedding = moved.model.embed_tokens.weight.double()
        self.layers = [FusedLayer.build(cast(Layer, layer), self.config) for layer in moved.model.layers]
        self.head = snap(moved.head_weight.double() * moved.model.norm.weight)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Logits [sum(wanted), V] of the last `wanted` tokens of each span, laid end to end.

        Writes the tokens' keys and values into the cache; what stands before each span must be there.
        """
        tokens, positions, slots = self._inputs(spans)
        rows, turn = self.cache.rows(slots, positions), self.turns[positions]
        attention = self._attention(spans)
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            query = self._project(index, layer, x, turn, rows)
            if index == len(self.layers) - 1:  # of other rows nothing but keys and values is of use
                chosen = self._chosen(spans, wanted)
                x, query = x[chosen], query[chosen]
                attention = self._attention([span.tail(n) for span, n in zip(spans, wanted, strict=True) if n])
            if len(x):
                x = self._finish(layer, x, attention(index, query))
        return F.linear(self._norm(x), self.head)

    def _attention(self, spans: Sequence[Span]) -> Attention:
        return Attention(self.cache, spans, self.config.num_attention_heads // self.config.num_key_value_heads)

    def _chosen(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        ends = np.cumsum([len(span.tokens) for span in spans])
        rows = [row for end, count in zip(ends.tolist(), wanted, strict=True) for row in range(end - count, end)]
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def _inputs(self, spans: Sequence[Span]) -> list[Tensor]:
        """Token, position and slot of each row."""
        tokens = np.concatenate([span.tokens for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        slots = np.repeat([span.slot for span in spans], [len(span.tokens) for span in spans])
        return [torch.from_numpy(x).to(self.device) for x in (tokens, positions, slots)]

    def _project(self, index: int, layer: FusedLayer, x: Tensor, turn: Tensor, rows: Tensor) -> Tensor:
        """Write the rows' keys and values into the cache; return their queries [rows, K, G, D]."""
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        heads = self.config.num_attention_heads
        qkv = F.linear(self._norm(x), layer.qkv).add_(layer.qkv_bias).view(len(x), heads + 2 * kv_heads, dim)
        pairs = qkv[:, : heads + kv_heads].view(len(x), heads + kv_heads, dim // 2, 2)
        torch.view_as_complex(pairs).mul_(turn)
        turned, value = snap(qkv[:, : heads + kv_heads]), qkv[:, heads + kv_heads :]
        self.cache.write(index, rows, turned[:, heads:], snap_to(value, layer.value_grid.view(kv_heads, dim)))
        return turned[:, :heads].view(len(x), kv_heads, heads // kv_heads, dim)

    def _finish(self, layer: FusedLayer, x: Tensor, attended: Tensor) -> Tensor:
        """A layer's output [rows, H] from its input and what attention gives."""
        x = x + F.linear(snap(attended), layer.out)
        gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=-1)
        return x.add_(F.linear(snap(F.silu(gate).mul_(up)), layer.down))

    def _norm(self, x: Tensor) -> Tensor:
        return snap(F.rms_norm(x, (self.config.hidden_size,), None, self.config.rms_norm_eps))
