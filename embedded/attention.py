"""Attention of a step over the cache, one run (new tokens of one slot) at a time.

A loop costs some 30 µs a run and layer, but reads exactly the context that a run has; one batched product over all
slots would read every slot up to the longest context, and reading is what takes the time. Letters: K key/value heads,
T tokens of a run, G query heads per key/value head, M = T × G queries, D head dimension, L columns (positions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from embedded.kv_cache import ALIGN, KVCache, round_up

CHUNK = 256  # columns of one matrix product with the values; a BLAS sums more than about 300 in several pieces


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
class _Run:
    slot: int
    queries: slice  # of all runs' queries
    columns: int  # L
    masked: int  # the columns from here on may be after a query's own position
    mask: Tensor  # [M, L - masked]


class Attention:
    """`groups` is G; each run has at least `least` queries, by computing them several times."""

    def __init__(self, kv: KVCache, spans: Sequence[Span], groups: int, least: int) -> None:
        self.kv, self.groups = kv, groups
        # Where a run would have too few queries, all have each of theirs this often: simpler, and rarely needed.
        self.copies = max(-(-least // (len(span.tokens) * groups)) for span in spans)
        self.runs = []
        query = 0
        for span in spans:
            stop = query + len(span.tokens) * groups * self.copies
            masked, columns = span.start // ALIGN * ALIGN, round_up(span.end, ALIGN)
            mask = _mask(span.start - masked, len(span.tokens), columns - masked, groups * self.copies)
            self.runs.append(_Run(span.slot, slice(query, stop), columns, masked, mask.to(kv.keys.device)))
            query = stop

    def __call__(self, layer: int, query: Tensor) -> Tensor:
        """From queries [rows, K, G, D], of all spans' tokens in order, to outputs [rows, K × G × D]."""
        rows, heads, groups, dim = query.shape
        if self.copies > 1:
            query = query.repeat_interleave(self.copies, 2)
        queries = query.transpose(0, 1).reshape(heads, -1, dim)
        keys, values = self.kv.keys_of[layer], self.kv.values_of[layer]
        outputs = []
        for run in self.runs:
            scores = torch.bmm(queries[:, run.queries], keys[run.slot].narrow(2, 0, run.columns))
            scores.narrow(2, run.masked, run.columns - run.masked).add_(run.mask)
            outputs.append(_weigh(torch.softmax(scores, -1), values[run.slot], run.columns))
        out = torch.cat(outputs, 1).view(heads, rows, groups, self.copies, dim)[:, :, :, 0]
        return out.transpose(0, 1).reshape(rows, -1)


def _weigh(weights: Tensor, values: Tensor, columns: int) -> Tensor:
    """weights × values [K, M, D], summed chunk by chunk."""
    if columns <= CHUNK:
        return torch.bmm(weights, values.narrow(1, 0, columns))
    out = torch.bmm(weights.narrow(2, 0, CHUNK), values.narrow(1, 0, CHUNK))
    for start in range(CHUNK, columns, CHUNK):
        width = min(CHUNK, columns - start)
        out.baddbmm_(weights.narrow(2, start, width), values.narrow(1, start, width))
    return out


@cache
def _mask(first: int, tokens: int, columns: int, repeat: int) -> Tensor:
    """0 where a column is visible to a query, else -inf; token t of a run sees columns 0 … first + t."""
    visible = torch.arange(first, first + tokens).repeat_interleave(repeat)
    return torch.zeros(len(visible), columns).masked_fill_(torch.arange(columns) > visible[:, None], -math.inf)
