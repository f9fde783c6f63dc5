"""The cached forward pass: one step over all running rows, in which a row's bits do not depend on the other rows.

A step takes one new token of each running slot (decode) and runs of new tokens of others (prefill) together. Every
number is computed the same way in both, whatever else is in the batch and however much of a prefix was cached:

- linear layers see at least 16 rows: a BLAS switches kernels only below that (AVX-512; with AVX2, below 96);
- scores are dot products over the head dimension, by matrix products of at least two rows (AVX2: four);
- softmax runs over a multiple of 32 columns, in place from column 0; those after a query's own position are -inf,
  which adds exact zeros at the end of every sum;
- weights × values is summed in chunks whose ends are a function of the query's own context: from 0 to the end of its
  first message, and from there on, at most 256 columns each. So a first message that sessions share (a system prompt)
  can be read once for all of them, and gives the same bits as when it is read for each.

`invariance.py` finds out which of these limits hold on the machine at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedded.attention import RunAttention
from embedded.kv_cache import KVCache, round_up
from embedded.model import Layer, ModelConfig, Qwen2
from embedded.step import Span, Step


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
        query = _interleave(attention.q_proj.weight, config), _interleave(attention.q_proj.bias, config)
        key = _interleave(attention.k_proj.weight, config), _interleave(attention.k_proj.bias, config)
        qkv = torch.cat((query[0] * scale, key[0], attention.v_proj.weight))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        return cls(
            qkv=qkv * layer.input_layernorm.weight,
            qkv_bias=torch.cat((query[1] * scale, key[1], attention.v_proj.bias)),
            out=attention.o_proj.weight.clone(),
            gate_up=gate_up * layer.post_attention_layernorm.weight,
            down=mlp.down_proj.weight.clone(),
        )


def _interleave(rows: Tensor, config: ModelConfig) -> Tensor:
    """Put rotary pairs (i, i + D/2) side by side, so that a rotation is one complex product."""
    pairs = rows.view(-1, 2, config.head_dim // 2, *rows.shape[1:]).transpose(1, 2)
    return pairs.reshape(rows.shape)


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

    def step(self, decode: Sequence[tuple[int, int, int]], spans: Sequence[Span]) -> Step:
        """Lay out a step of (slot, token, position) of each running slot, and of spans of others."""
        return Step(self.cache, decode, spans, self.tiling.rows)

    @torch.inference_mode()
    def forward(self, step: Step, take: Sequence[int]) -> Tensor:
        """Logits of the rows `take` of the step, [at least len(take), V]; the rows after those mean nothing.

        Writes the step's keys and values into the cache.
        """
        tokens, positions, slots, columns = (
            torch.from_numpy(x).to(self.device) for x in (step.tokens, step.positions, step.slots, step.columns)
        )
        write = self.cache.write_indices(slots, columns)
        rotation = self.rotations[positions][:, None]
        attend = self._attention(step)
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            query = self._project(index, layer, x, rotation, write)
            x = torch.addmm(x, attend(index, query), layer.out.t())
            gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())
        chosen = np.zeros(max(round_up(len(take), 16), self.tiling.rows), dtype=np.int64)
        chosen[: len(take)] = take
        last = x[torch.from_numpy(chosen).to(self.device)]
        return F.linear(self._norm(last), self.head)

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

    def _attention(self, step: Step) -> Callable[[int, Tensor], Tensor]:
        """The function (layer, queries of all rows) → attention output of all rows."""
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        copies = -(-self.tiling.queries // groups)
        rows = [torch.from_numpy(batch.rows.ravel()).to(self.device) for batch in step.batches]
        runs = [RunAttention(self.cache, batch, groups * copies, self.device) for batch in step.batches]
        order = torch.from_numpy(step.order()).to(self.device)

        def attend(layer: int, query: Tensor) -> Tensor:
            if copies > 1:
                query = query.repeat_interleave(copies, 2)
            out = torch.cat([run(layer, query[row]) for run, row in zip(runs, rows, strict=True)])[order]
            if copies > 1:
                out = out.view(len(out), -1, copies, self.config.head_dim)[:, :, 0].reshape(len(out), -1)
            return out

        return attend

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), None, self.config.rms_norm_eps)
