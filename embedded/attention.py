"""Attention of a step over the cache, one run (new tokens of one slot) at a time.

A loop costs some 30 µs a run and layer, but reads exactly the context that a run has; one batched product over all
slots would read every slot up to the longest context. Letters: K key/value heads, T tokens of a run, G query heads per
key/value head, M = T × G queries, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from slime_swe.embedded.exact import BITS
from slime_swe.embedded.kv_cache import KVCache

PIECE = 64  # tokens: longer runs are cut, so that the scores of one stay in a core's cache
# The weights of one query add up to 1, so they are rounded to multiples of 2**-BITS.
WEIGHT_GRID = 1.5 * 2 ** (52 - BITS)


@dataclass(frozen=True)
class Span:
    """A run of new tokens of one slot, at positions `start`, `start + 1`, …"""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def tail(self, count: int) -> Span:
        """Its last `count` tokens."""
        return Span(self.slot, self.end - count, self.tokens[len(self.tokens) - count :])


class Attention:
    """Over the spans of one step, in order; `groups` is G."""

    def __init__(self, cache: KVCache, spans: Sequence[Span], groups: int) -> None:
        self.cache, self.groups = cache, groups
        self.runs = [
            Span(span.slot, span.start + first, span.tokens[first : first + PIECE])
            for span in spans
            for first in range(0, len(span.tokens), PIECE)
        ]
        self.sizes = [len(run.tokens) * groups for run in self.runs]

    def __call__(self, layer: int, query: Tensor) -> Tensor:
        """From snapped queries [rows, K, G, D], of all spans' tokens in order, to outputs [rows, K × G × D]."""
        rows, heads, groups, dim = query.shape
        queries = torch.split(query.transpose(0, 1).reshape(heads, rows * groups, dim), self.sizes, dim=1)
        out = torch.cat([self._run(layer, *pair) for pair in zip(self.runs, queries, strict=True)], dim=1)
        return out.view(heads, rows, groups * dim).transpose(0, 1).reshape(rows, -1)

    def _run(self, layer: int, run: Span, query: Tensor) -> Tensor:
        """[K, M, D] of one run."""
        keys = self.cache.keys_of[layer][run.slot].narrow(1, 0, run.end)
        scores = torch.bmm(query, keys.transpose(1, 2))
        if len(run.tokens) > 1:
            own = scores.narrow(2, run.start, len(run.tokens))
            own.masked_fill_(_unseen(len(run.tokens), self.groups, query.device), -math.inf)
        weights = torch.softmax(scores, -1).add_(WEIGHT_GRID).sub_(WEIGHT_GRID)
        return torch.bmm(weights, self.cache.values_of[layer][run.slot].narrow(1, 0, run.end))


@lru_cache
def _unseen(tokens: int, groups: int, device: torch.device) -> Tensor:
    """[M, T]: whether a token of the run comes after a query's own."""
    after = torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)
    return after.repeat_interleave(groups, dim=0)
