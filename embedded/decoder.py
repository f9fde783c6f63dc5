"""The cached forward pass: one step over runs of new tokens, in which a row's bits do not depend on the other rows.

A step takes the next tokens of every running request (decode) and pieces of prompts (prefill) together. Every number is
computed the same way in both, whatever else is in the batch and however much of a context was cached:

- linear layers see at least 16 rows: a BLAS switches kernels only below that (AVX-512; with AVX2, below 96);
- attention is computed run by run. Scores are dot products over the head dimension, by matrix products of at least two
  rows (AVX2: four); softmax runs over a multiple of 32 columns, from column 0, of which those after a query's own
  position are -inf, which adds exact zeros at the end of every sum; weights × values is summed 256 columns at a time.

`invariance.py` finds out which of these limits hold on the machine at hand.
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

from embedded.attention import Attention, Span
from embedded.fused import interleaved
from embedded.kv_cache import KVCache, round_up
from embedded.model import Layer, ModelConfig, Qwen2


@dataclass(frozen=True)
class Tiling:
    """The least numbers of rows of a linear layer and of queries of a run that are computed."""

    rows: int = 16
    queries: int = 2


@dataclass(frozen=True)
class FusedLayer:
    """One layer's weights as the step multiplies them: norms and the score scale folded in, projections joined."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def build(cls, layer: Layer, config: ModelConfig) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        scale = 1 / math.sqrt(config.head_dim)
        query, key = (
            (interleaved(part.weight, config.head_dim), interleaved(part.bias, config.head_dim))
            for part in (attention.q_proj, attention.k_proj)
        )
        qkv = torch.cat((query[0] * scale, key[0], attention.v_proj.weight))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        return cls(
            qkv=qkv * layer.input_layernorm.weight,
            qkv_bias=torch.cat((query[1] * scale, key[1], attention.v_proj.bias)),
            out=attention.o_proj.weight.clone(),
            gate_up=gate_up * layer.post_attention_layernorm.weight,
            down=mlp.down_proj.weight.clone(),
        )


class Decoder:
    """A Qwen2's weights, fused for inference, over a KVCache."""

    def __init__(self, model: Qwen2, cache: KVCache, device: torch.device) -> None:
        self.config = model.config
        self.cache = cache
        self.device = device
        self.tiling = Tiling()
        half = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32) / self.config.head_dim
        angles = torch.arange(cache.width).float()[:, None] * (1.0 / self.config.rope_theta**half)
        self.rotations = torch.polar(torch.ones_like(angles), angles).to(device)
        self.load(model)

    @torch.inference_mode()
    def load(self, model: Qwen2) -> None:
        """Take over the weights of `model`, which must have the same architecture."""
        moved = model.to(self.device)
        self.embedding = moved.model.embed_tokens.weight.detach().clone()
        self.layers = [FusedLayer.build(cast(Layer, layer), self.config) for layer in moved.model.layers]
        self.head = moved.head_weight * moved.model.norm.weight

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], take: Sequence[int]) -> Tensor:
        """Logits of some of the spans' tokens, laid end to end; [at least len(take), V], of which the further rows
        mean nothing.

        Writes the tokens' keys and values into the cache; what stands before each span must be there.
        """
        rows = sum(len(span.tokens) for span in spans)
        tokens, positions, write = self._inputs(spans, max(round_up(rows, 16), self.tiling.rows))
        rotation = self.rotations[positions][:, None]
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        attention = Attention(self.cache, spans, groups, self.tiling.queries)
        x = self.embedding[tokens]
        attended = x.new_zeros(len(x), self.config.num_attention_heads * self.config.head_dim)
        for index, layer in enumerate(self.layers):
            query = self._project(index, layer, x, rotation, write)
            attended[:rows] = attention(index, query[:rows])
            x = torch.addmm(x, attended, layer.out.t())
            gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())
        return self._logits(x, take)

    def _inputs(self, spans: Sequence[Span], size: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Token and position of each row, and where its keys and values go; rows after the spans' are padding."""
        tokens, positions, slots = (np.zeros(size, dtype=np.int64) for _ in range(3))
        columns = np.full(size, self.cache.scratch, dtype=np.int64)
        row = 0
        for span in spans:
            end = row + len(span.tokens)
            tokens[row:end], slots[row:end] = span.tokens, span.slot
            positions[row:end] = columns[row:end] = range(span.start, span.end)
            row = end
        on_device = [torch.from_numpy(x).to(self.device) for x in (tokens, positions, slots, columns)]
        return on_device[0], on_device[1], self.cache.write_indices(on_device[2], on_device[3])

    def _logits(self, x: Tensor, take: Sequence[int]) -> Tensor:
        chosen = np.zeros(max(round_up(len(take), 16), self.tiling.rows), dtype=np.int64)
        chosen[: len(take)] = take
        return F.linear(self._norm(x[torch.from_numpy(chosen).to(self.device)]), self.head)

    def _project(
        self, index: int, layer: FusedLayer, x: Tensor, rotation: Tensor, write: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Write the rows' keys and values into the cache; return their queries [rows, K, G, D]."""
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        heads = self.config.num_attention_heads
        qkv = F.linear(self._norm(x), layer.qkv, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, dim)
        pairs = qkv[:, : heads + kv_heads].view(len(x), heads + kv_heads, dim // 2, 2)
        torch.view_as_complex(pairs).mul_(rotation)
        self.cache.write(index, write, qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :])
        return qkv[:, :heads].view(len(x), kv_heads, heads // kv_heads, dim)

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), None, self.config.rms_norm_eps)
