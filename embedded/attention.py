"""Attention of a step over the cache, for a batch of runs: n slots, each with M queries of its own at its end.

One new token of every running slot is such a batch (one token a slot); prompts of similar length are another. Letters:
n runs, K key/value heads, T tokens of a run (the longest; shorter ones are padded), G query heads per key/value head,
M = T × G queries, D head dimension, L columns (positions). What makes the bits of a query independent of n, T, L and
the shared prefix is said in `decoder.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embedded.kv_cache import BLOCK, KVCache


@dataclass(frozen=True)
class Prefix:
    """Positions 0 … length-1, a multiple of BLOCK, are the same in all slots of the step; `slot` is one of them."""

    slot: int
    length: int


class RunAttention:
    """`slots` of the n runs: a range from 0, or any; `positions` [n, T] of their tokens; `end` of the longest, rounded
    up to a multiple of BLOCK."""

    def __init__(
        self, cache: KVCache, slots: Sequence[int], positions: Tensor, end: int, prefix: Prefix, groups: int
    ) -> None:
        self.cache, self.prefix, self.end = cache, prefix, end
        self.runs, self.tokens = positions.shape
        self.heads, self.groups = cache.keys.shape[2], groups
        self.first = slots[0] if len(slots) == 1 or slots == range(len(slots)) else None
        self.slots = torch.tensor(slots, device=positions.device) if self.first is None else None
        columns = torch.arange(prefix.length, end, device=positions.device)
        hidden = (columns > positions[..., None]).repeat_interleave(groups, dim=1)
        mask = torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, -math.inf)
        self.mask = mask.repeat_interleave(self.heads, dim=0)

    def __call__(self, layer: int, query: Tensor) -> Tensor:
        """From queries [n × T, K, G, D] to outputs [n × T, K × G × D]."""
        queries = self._by_run(query)
        own = torch.baddbmm(self.mask, queries, self._cached(self.cache.keys[layer], 3))
        if self.prefix.length:
            keys = self.cache.keys[layer, self.prefix.slot, :, :, : self.prefix.length]
            own = torch.cat((self._to_runs(torch.bmm(self._to_heads(queries), keys)), own), dim=-1)
        weights = torch.softmax(own, dim=-1)
        out = self._from_prefix(weights, self.cache.values[layer, self.prefix.slot])
        values = self._cached(self.cache.values[layer], 2)
        for block in range(0, self.end - self.prefix.length, BLOCK):
            column = self.prefix.length + block
            out.baddbmm_(weights[:, :, column : column + BLOCK], values[:, block : block + BLOCK])
        by_token = out.view(self.runs, self.heads, self.tokens, -1).transpose(1, 2)
        return by_token.reshape(self.runs * self.tokens, -1)

    def _from_prefix(self, weights: Tensor, values: Tensor) -> Tensor:
        """What the shared prefix adds up to, [n × K, M, D]; it is read once for all runs."""
        if not self.prefix.length:
            return weights.new_zeros(weights.shape[0], weights.shape[1], values.shape[-1])
        shared = self._to_heads(weights[:, :, : self.prefix.length])
        out = shared.new_zeros(self.heads, shared.shape[1], values.shape[-1])
        for block in range(0, self.prefix.length, BLOCK):
            out.baddbmm_(shared[:, :, block : block + BLOCK], values[:, block : block + BLOCK])
        return self._to_runs(out).reshape(weights.shape[0], weights.shape[1], -1)

    def _by_run(self, query: Tensor) -> Tensor:
        """[n × T, K, G, D] → [n × K, M, D]"""
        dim = query.shape[-1]
        split = query.view(self.runs, self.tokens, self.heads, self.groups, dim).transpose(1, 2)
        return split.reshape(self.runs * self.heads, self.tokens * self.groups, dim)

    def _to_heads(self, x: Tensor) -> Tensor:
        """[n × K, M, …] → [K, n × M, …]"""
        split = x.unflatten(0, (self.runs, self.heads)).transpose(0, 1)  # type: ignore[no-untyped-call]
        return split.reshape(self.heads, self.runs * x.shape[1], x.shape[2])

    def _to_runs(self, x: Tensor) -> Tensor:
        """[K, n × M, …] → [n × K, M, …]"""
        split = x.view(self.heads, self.runs, -1, x.shape[2]).transpose(0, 1)
        return split.reshape(self.runs * self.heads, -1, x.shape[2])

    def _cached(self, tensor: Tensor, axis: int) -> Tensor:
        """The runs' part of a layer's keys or values [slot, K, …] after the prefix, [n × K, …]; a view if it can be."""
        part = tensor.narrow(axis, self.prefix.length, self.end - self.prefix.length)
        if self.slots is None:
            assert self.first is not None
            return part[self.first : self.first + self.runs].flatten(0, 1)
        return part.index_select(0, self.slots).flatten(0, 1)
