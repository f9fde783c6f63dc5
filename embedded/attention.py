"""Attention of a step over the cache, for a batch of runs: n slots, each with M queries of its own.

One new token of every running slot is such a batch (one token a slot); prompts of similar length are another. Letters:
n runs, K key/value heads, T tokens of a run (the longest; shorter ones are padded), G query heads per key/value head,
M = T × G queries, D head dimension, L columns (positions). What makes the bits of a query independent of n, T, L and
of whether the columns before the boundary are read once for all runs is said in `decoder.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from embedded.kv_cache import KVCache
from embedded.step import Batch

CHUNK = 256  # columns of one matrix product with the values; a BLAS sums more than about 300 in several pieces


def chunks(start: int, end: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + CHUNK, end)) for begin in range(start, end, CHUNK)]


class RunAttention:
    """`groups` is G."""

    def __init__(self, cache: KVCache, batch: Batch, groups: int, device: torch.device) -> None:
        self.cache, self.batch, self.groups = cache, batch, groups
        self.heads = cache.keys.shape[2]
        self.runs, self.tokens = batch.positions.shape
        self.begin = 0 if batch.shared is None else batch.boundary  # columns before are read once for all runs
        slots = batch.slots
        self.first = slots[0] if len(slots) == 1 or isinstance(slots, range) else None
        self.slots = torch.tensor(slots, device=device) if self.first is None else None
        positions = torch.from_numpy(batch.positions).to(device)
        hidden = torch.arange(self.begin, batch.end, device=device) > positions[..., None]
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -math.inf)
        self.mask = mask.repeat_interleave(groups, dim=1).repeat_interleave(self.heads, dim=0)

    def __call__(self, layer: int, query: Tensor) -> Tensor:
        """From queries [n × T, K, G, D] to outputs [n × T, K × G × D]."""
        queries = self._by_run(query)
        scores = torch.baddbmm(self.mask, queries, self._own(self.cache.keys[layer], 3))
        if self.begin:
            keys = self.cache.keys[layer, self.batch.shared, :, :, : self.begin]
            scores = torch.cat((self._to_runs(torch.bmm(self._to_heads(queries), keys)), scores), dim=-1)
        weights = torch.softmax(scores, dim=-1)
        out = self._from_prefix(weights, layer)
        values = self._own(self.cache.values[layer], 2)
        boundary, end = self.batch.boundary, self.batch.end
        for start, stop in [*chunks(self.begin, boundary), *chunks(boundary, end)]:
            out.baddbmm_(weights[:, :, start:stop], values[:, start - self.begin : stop - self.begin])
        by_token = out.view(self.runs, self.heads, self.tokens, -1).transpose(1, 2)
        return by_token.reshape(self.runs * self.tokens, -1)

    def _from_prefix(self, weights: Tensor, layer: int) -> Tensor:
        """What the shared columns add up to, [n × K, M, D]."""
        dim = self.cache.values.shape[-1]
        if not self.begin:
            return weights.new_zeros(weights.shape[0], weights.shape[1], dim)
        shared = self._to_heads(weights[:, :, : self.begin])
        out = shared.new_zeros(self.heads, shared.shape[1], dim)
        for start, stop in chunks(0, self.begin):
            out.baddbmm_(shared[:, :, start:stop], self.cache.values[layer, self.batch.shared, :, start:stop])
        return self._to_runs(out)

    def _by_run(self, query: Tensor) -> Tensor:
        """[n × T, K, G, D] → [n × K, M, D]"""
        split = query.view(self.runs, self.tokens, self.heads, self.groups, -1).transpose(1, 2)
        return split.reshape(self.runs * self.heads, self.tokens * self.groups, -1)

    def _to_heads(self, x: Tensor) -> Tensor:
        """[n × K, M, …] → [K, n × M, …]"""
        split = x.reshape(self.runs, self.heads, *x.shape[1:]).transpose(0, 1)
        return split.reshape(self.heads, self.runs * x.shape[1], x.shape[2])

    def _to_runs(self, x: Tensor) -> Tensor:
        """[K, n × M, …] → [n × K, M, …]"""
        split = x.view(self.heads, self.runs, -1, x.shape[2]).transpose(0, 1)
        return split.reshape(self.runs * self.heads, -1, x.shape[2])

    def _own(self, tensor: Tensor, axis: int) -> Tensor:
        """What is read per run of a layer's keys or values [slot, K, …], as [n × K, …]; a view if it can be."""
        part = tensor.narrow(axis, self.begin, self.batch.end - self.begin)
        if self.slots is None:
            assert self.first is not None
            return part[self.first : self.first + self.runs].flatten(0, 1)
        return part.index_select(0, self.slots).flatten(0, 1)
