"""The cached forward pass: one step over all running rows, in which a row's bits do not depend on the other rows.

A step takes one new token of each running slot (decode) and runs of new tokens of others (prefill) together. Every number
is computed the same way in both, whatever else is in the batch and however much of a prefix was cached:

- linear layers see a multiple of 16 rows (a BLAS switches kernels only below that);
- scores are dot products over the head dimension; softmax runs over a multiple of 32 columns, those after a row's own
  position being -inf, which adds exact zeros at the end of every sum;
- weights × values is accumulated block by block of 64 positions, in order, one matrix product each.

So a prefix that all rows share (a system prompt) can be read once, as one matrix product for all rows, and gives the same
bits as reading it per row. `invariance.py` checks all this on the machine at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedded.kv_cache import BLOCK, KVCache, round_up
from embedded.model import Layer, ModelConfig, Qwen2

ROWS = 16  # the number of rows of a batch is padded to a multiple of this


@dataclass(frozen=True)
class Span:
    """A run of new tokens of one slot, at positions `start`, `start + 1`, …"""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


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
    pairs = rows.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2)
    return pairs.reshape(rows.shape)


class Step:
    """What all layers of one forward pass share: where rows come from, go to, and may look."""

    def __init__(self, cache: KVCache, decode: Sequence[tuple[int, int, int]], spans: Sequence[Span]) -> None:
        """`decode` holds (slot, token, position) of each running row; rows 0 … highest slot are computed."""
        self.spans = spans
        self.rows = round_up(max(slot for slot, _, _ in decode) + 1, ROWS) if decode else 0
        self.rows = min(self.rows, cache.slots)
        slots = [slot for slot, _, _ in decode] + [span.slot for span in spans]
        reach = [position for _, _, position in decode] + [span.start for span in spans]
        self.shared = cache.shared_blocks(slots, min(reach)) if len(slots) > 1 else 0
        self.reference = slots[0]
        self.size = round_up(self.rows + sum(len(span.tokens) for span in spans), ROWS)
        self._pack(cache, decode)
        longest_decode = max((position + 1 for _, _, position in decode), default=0)
        self.decode_end = round_up(longest_decode, BLOCK)
        self.end = max([self.decode_end] + [round_up(span.end, BLOCK) for span in spans])

    def _pack(self, cache: KVCache, decode: Sequence[tuple[int, int, int]]) -> None:
        tokens = np.zeros(self.size, dtype=np.int64)
        positions = np.full(self.size, self.shared, dtype=np.int64)
        slots = np.zeros(self.size, dtype=np.int64)
        columns = np.full(self.size, cache.scratch, dtype=np.int64)
        if decode:
            rows, ids, places = np.array(decode, dtype=np.int64).T
            tokens[rows], slots[rows], positions[rows], columns[rows] = ids, rows, places, places
        self.offsets = []
        row = self.rows
        for span in self.spans:
            end = row + len(span.tokens)
            tokens[row:end], slots[row:end] = span.tokens, span.slot
            positions[row:end] = columns[row:end] = np.arange(span.start, span.end)
            self.offsets.append(row)
            row = end
        self.tokens, self.positions, self.slots, self.columns = tokens, positions, slots, columns


class Decoder:
    """A Qwen2's weights, fused for inference, over a KVCache."""

    def __init__(self, model: Qwen2, cache: KVCache, device: torch.device) -> None:
        self.config = model.config
        self.cache = cache
        self.device = device
        self.groups = self.config.num_attention_heads // self.config.num_key_value_heads
        # A matrix product of a single row takes another kernel, so a lone query head is computed twice.
        self.copies = 2 if self.groups == 1 else 1
        half = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32) / self.config.head_dim
        angles = torch.arange(cache.width).float()[:, None] * (1.0 / self.config.rope_theta**half)
        self.rotations = torch.polar(torch.ones_like(angles), angles).to(device)
        self.load(model)

    @torch.inference_mode()
    def load(self, model: Qwen2) -> None:
        """Take over the weights of `model`, which must have the same architecture."""
        moved = model.to(self.device)
        self.embedding = moved.model.embed_tokens.weight.detach().clone()
        self.layers = [FusedLayer.build(layer, self.config) for layer in moved.model.layers]
        self.head = moved.head_weight * moved.model.norm.weight

    @torch.inference_mode()
    def forward(self, step: Step, take: Sequence[int]) -> Tensor:
        """Logits [len(take), V] of the rows `take` of the step; writes the step's keys and values into the cache."""
        tokens, positions, slots, columns = (
            torch.from_numpy(x).to(self.device) for x in (step.tokens, step.positions, step.slots, step.columns)
        )
        write = self.cache.write_indices(slots, columns)
        rotation = self.rotations[positions][:, None]
        attention = _Attention(self, step, positions)
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            qkv = F.linear(self._norm(x), layer.qkv, layer.qkv_bias)
            x = torch.addmm(x, attention(index, qkv, rotation, write), layer.out.t())
            gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())
        chosen = list(take) + [0] * (round_up(len(take), ROWS) - len(take))
        last = x[torch.tensor(chosen, device=self.device)]
        return F.linear(self._norm(last), self.head)[: len(take)]

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), None, self.config.rms_norm_eps)


class _Attention:
    """Attention of one step; its buffers serve all layers in turn. K key/value heads, R query rows (rows × groups)."""

    def __init__(self, decoder: Decoder, step: Step, positions: Tensor) -> None:
        self.step, self.cache = step, decoder.cache
        config = decoder.config
        self.heads, self.dim = config.num_key_value_heads, config.head_dim
        self.groups, self.copies = decoder.groups, decoder.copies
        self.per_row = self.groups * self.copies
        columns = torch.arange(step.shared, step.end, device=decoder.device)
        mask = torch.zeros(step.size, step.end - step.shared, device=decoder.device)
        mask.masked_fill_(columns > positions[:, None], -math.inf)
        self.mask_RxL = mask.repeat_interleave(self.per_row, 0)
        self.scores_KxRxL = torch.empty(self.heads, step.size * self.per_row, step.end, device=decoder.device)
        self.weights_KxRxL = torch.empty_like(self.scores_KxRxL)

    def __call__(self, layer: int, qkv: Tensor, rotation: Tensor, write: tuple[Tensor, Tensor]) -> Tensor:
        """Attention output [rows, query heads × D] of this layer, after writing the rows' keys and values."""
        query_size, key_size = self.heads * self.groups * self.dim, self.heads * self.dim
        pairs = qkv[:, : query_size + key_size].unflatten(-1, (-1, self.dim // 2, 2))
        torch.view_as_complex(pairs).mul_(rotation)
        self.cache.write(layer, write, qkv[:, query_size : query_size + key_size], qkv[:, query_size + key_size :])
        grouped = qkv[:, :query_size].unflatten(-1, (self.heads, self.groups, self.dim)).transpose(0, 1)
        if self.copies > 1:
            grouped = grouped.repeat_interleave(self.copies, 2)
        query = grouped.reshape(self.heads, -1, self.dim)
        self._score(query, self.cache.keys[layer])
        torch.softmax(self.scores_KxRxL, dim=-1, out=self.weights_KxRxL)
        out = torch.zeros_like(query)
        self._collect(out, self.cache.values[layer])
        per_row = out.unflatten(1, (self.step.size, self.per_row))[:, :, :: self.copies]
        return per_row.transpose(0, 1).reshape(self.step.size, query_size)

    def _score(self, query: Tensor, keys: Tensor) -> None:
        step, scores = self.step, self.scores_KxRxL
        rows, shared = step.rows * self.per_row, step.shared
        if shared:
            torch.bmm(query, keys[step.reference, :, :, :shared], out=scores[:, :, :shared])
        scores[:, :, shared:] = self.mask_RxL
        if rows:
            width = step.decode_end - shared
            mask = self.mask_RxL[:rows, :width].unflatten(0, (step.rows, self.per_row))
            for head in range(self.heads):
                part = query[head, :rows].unflatten(0, (step.rows, self.per_row))
                result = torch.baddbmm(mask, part, keys[: step.rows, head, :, shared : step.decode_end])
                scores[head, :rows, shared : step.decode_end] = result.flatten(0, 1)
        for span, start, end, stop in self._spans():
            scores[:, start:end, shared:stop].baddbmm_(query[:, start:end], keys[span.slot, :, :, shared:stop])

    def _collect(self, out: Tensor, values: Tensor) -> None:
        step, weights = self.step, self.weights_KxRxL
        rows = step.rows * self.per_row
        for block in range(0, step.shared, BLOCK):
            part = slice(block, block + BLOCK)
            out.baddbmm_(weights[:, :, part], values[step.reference, :, part])
        for head in range(self.heads if rows else 0):
            target = out[head, :rows].unflatten(0, (step.rows, self.per_row))
            source = weights[head, :rows].unflatten(0, (step.rows, self.per_row))
            for block in range(step.shared, step.decode_end, BLOCK):
                part = slice(block, block + BLOCK)
                target.baddbmm_(source[:, :, part], values[: step.rows, head, part])
        for span, start, end, stop in self._spans():
            target = out[:, start:end]
            for block in range(step.shared, stop, BLOCK):
                part = slice(block, block + BLOCK)
                target.baddbmm_(weights[:, start:end, part], values[span.slot, :, part])

    def _spans(self) -> list[tuple[Span, int, int, int]]:
        """Each span with its range of query rows and the end of its last block."""
        return [
            (span, row * self.per_row, (row + len(span.tokens)) * self.per_row, round_up(span.end, BLOCK))
            for span, row in zip(self.step.spans, self.step.offsets, strict=True)
        ]
