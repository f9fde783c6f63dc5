"""Attention of a step over the cache, one run (new tokens of one slot) at a time.

A loop costs some 30 µs a run and layer, but reads exactly the context that a run has; one batched product over all
slots would read every slot up to the longest context, and reading is what takes the time. Letters: K key/value heads,
T tokens of a run, G query heads per key/value head, M = T × G queries, D head dimension, L columns (positions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from embedded.kv_cache import ALIGN, KVCache, round_up

SHORT = 8  # tokens: longer runs are pieces of prompts, whose masks are large and hardly ever asked for twice
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
    """`groups` is G; a run of fewer than `least` queries has each of them computed several times."""

    def __init__(self, kv: KVCache, spans: Sequence[Span], groups: int, least: int) -> None:
        self.kv = kv
        device = kv.keys.device
        sizes = [len(span.tokens) * groups for span in spans]
        copies = [-(-least // size) for size in sizes]
        self.copied = _Copies(sizes, copies, device) if max(copies) > 1 else None
        self.runs = []
        query = 0
        for span, size, times in zip(spans, sizes, copies, strict=True):
            stop = query + size * times
            masked, columns = span.start // ALIGN * ALIGN, round_up(span.end, ALIGN)
            mask = _mask(span.start - masked, len(span.tokens), columns - masked, groups * times)
            self.runs.append(_Run(span.slot, slice(query, stop), columns, masked, mask.to(device)))
            query = stop

    def __call__(self, layer: int, query: Tensor) -> Tensor:
        """From queries [rows, K, G, D], of all spans' tokens in order, to outputs [rows, K × G × D]."""
        rows, heads, _, dim = query.shape
        queries = query.transpose(0, 1).reshape(heads, -1, dim)
        if self.copied is not None:
            queries = queries.index_select(1, self.copied.sources)
        keys, values = self.kv.keys_of[layer], self.kv.values_of[layer]
        outputs = []
        for run in self.runs:
            scores = torch.bmm(queries[:, run.queries], keys[run.slot].narrow(2, 0, run.columns))
            scores.narrow(2, run.masked, run.columns - run.masked).add_(run.mask)
            outputs.append(_weigh(torch.softmax(scores, -1), values[run.slot], run.columns))
        out = torch.cat(outputs, 1)
        if self.copied is not None:
            out = out.index_select(1, self.copied.firsts)
        return out.view(heads, rows, -1, dim).transpose(0, 1).reshape(rows, -1)


class _Copies:
    """Which query each computed one is a copy of, and where each query's first copy is; two int64 vectors."""

    def __init__(self, sizes: Sequence[int], copies: Sequence[int], device: torch.device) -> None:
        times = np.repeat(copies, sizes)
        self.sources = torch.from_numpy(np.repeat(np.arange(len(times)), times)).to(device)
        self.firsts = torch.from_numpy(np.cumsum(times) - times).to(device)


def _weigh(weights: Tensor, values: Tensor, columns: int) -> Tensor:
    """weights × values [K, M, D], summed chunk by chunk."""
    if columns <= CHUNK:
        return torch.bmm(weights, values.narrow(1, 0, columns))
    out = torch.bmm(weights.narrow(2, 0, CHUNK), values.narrow(1, 0, CHUNK))
    for start in range(CHUNK, columns, CHUNK):
        width = min(CHUNK, columns - start)
        out.baddbmm_(weights.narrow(2, start, width), values.narrow(1, start, width))
    return out


def _mask(first: int, tokens: int, columns: int, repeat: int) -> Tensor:
    """0 where a column is visible to a query, else -inf; token t of a run sees columns 0 … first + t."""
    make = _short_mask if tokens <= SHORT else _new_mask
    return make(first, tokens, columns, repeat)


def _new_mask(first: int, tokens: int, columns: int, repeat: int) -> Tensor:
    mask = torch.full((tokens, columns), -math.inf).triu_(first + 1)
    return mask.repeat_interleave(repeat, 0) if repeat > 1 else mask


_short_mask = lru_cache(maxsize=1024)(_new_mask)
