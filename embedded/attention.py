"""Attention of one step over the cache: running rows (one query each) as one batch, runs of new tokens one by one.

Letters: K key/value heads, G query heads per key/value head, D head dimension, R running rows, T all new tokens.
Both halves do the same arithmetic on a query, see `decoder.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embedded.kv_cache import BLOCK, KVCache, round_up

if TYPE_CHECKING:
    from embedded.decoder import Step


def _blocks(start: int, end: int) -> list[slice]:
    return [slice(block, block + BLOCK) for block in range(start, end, BLOCK)]


def _mask(positions: Tensor, start: int, end: int) -> Tensor:
    """0 where a column is at or before the row's position, else -inf; [rows, end - start]."""
    mask = torch.zeros(len(positions), end - start, device=positions.device)
    return mask.masked_fill_(torch.arange(start, end, device=positions.device) > positions[:, None], -math.inf)


class DecodeAttention:
    """One query per slot 0 … R-1. Scores are [R, K, G, columns]."""

    def __init__(self, cache: KVCache, step: Step, positions_R: Tensor) -> None:
        self.cache, self.step = cache, step
        self.mask = _mask(positions_R, step.shared, step.decode_end)[:, None, None]

    def __call__(self, layer: int, query_RxKxGxD: Tensor) -> Tensor:
        """[R, K × G × D]"""
        step, keys, values = self.step, self.cache.keys[layer], self.cache.values[layer]
        rows, heads, groups, dim = query_RxKxGxD.shape
        query = query_RxKxGxD.reshape(rows * heads, groups, dim)
        mask = self.mask.expand(-1, heads, groups, -1).reshape(rows * heads, groups, -1)
        own = torch.baddbmm(mask, query, keys[:rows].flatten(0, 1)[:, :, step.shared : step.decode_end])
        own = own.view(rows, heads, groups, -1)
        by_head = (heads, rows * groups, -1)
        if step.shared:
            grouped = query_RxKxGxD.transpose(0, 1).reshape(by_head)
            common = torch.bmm(grouped, keys[step.reference, :, :, : step.shared])
            own = torch.cat((common.view(heads, rows, groups, -1).transpose(0, 1), own), dim=-1)
        weights = torch.softmax(own, dim=-1)
        out = self._shared(weights[..., : step.shared].transpose(0, 1).reshape(by_head), values, rows, dim)
        flat, cached = weights.view(rows * heads, groups, -1), values[:rows].flatten(0, 1)
        for block in _blocks(step.shared, step.decode_end):
            out.baddbmm_(flat[:, :, block], cached[:, block])
        return out.view(rows, -1)

    def _shared(self, weights: Tensor, values: Tensor, rows: int, dim: int) -> Tensor:
        """What the shared blocks add up to, [R × K, G, D]; they are read once for all rows."""
        heads = values.shape[1]
        out = weights.new_zeros(heads, weights.shape[1], dim)
        for block in _blocks(0, self.step.shared):
            out.baddbmm_(weights[:, :, block], values[self.step.reference, :, block])
        return out.view(heads, rows, -1, dim).transpose(0, 1).reshape(rows * heads, -1, dim)


class PrefillAttention:
    """Runs of new tokens, each of one slot. Scores are [K, T × G, columns]."""

    def __init__(self, cache: KVCache, step: Step, positions_T: Tensor, groups: int) -> None:
        self.cache, self.step = cache, step
        self.end = max(round_up(span.end, BLOCK) for span in step.spans)
        self.mask = _mask(positions_T, step.shared, self.end).repeat_interleave(groups, 0)
        self.parts = []
        row = 0
        for span in step.spans:
            stop = row + len(span.tokens) * groups
            self.parts.append((span.slot, slice(row, stop), round_up(span.end, BLOCK)))
            row = stop

    def __call__(self, layer: int, query_TxKxGxD: Tensor) -> Tensor:
        """[T, K × G × D]"""
        step, keys, values = self.step, self.cache.keys[layer], self.cache.values[layer]
        tokens, heads, groups, dim = query_TxKxGxD.shape
        query = query_TxKxGxD.transpose(0, 1).reshape(heads, tokens * groups, dim)
        scores = query.new_empty(heads, tokens * groups, self.end)
        if step.shared:
            scores[:, :, : step.shared] = torch.bmm(query, keys[step.reference, :, :, : step.shared])
        scores[:, :, step.shared :] = self.mask
        for slot, rows, end in self.parts:
            scores[:, rows, step.shared : end].baddbmm_(query[:, rows], keys[slot, :, :, step.shared : end])
        weights = torch.softmax(scores, dim=-1)
        out = torch.zeros_like(query)
        for block in _blocks(0, step.shared):
            out.baddbmm_(weights[:, :, block], values[step.reference, :, block])
        for slot, rows, end in self.parts:
            target = out[:, rows]
            for block in _blocks(step.shared, end):
                target.baddbmm_(weights[:, rows, block], values[slot, :, block])
        return out.view(heads, tokens, groups, dim).transpose(0, 1).reshape(tokens, -1)
