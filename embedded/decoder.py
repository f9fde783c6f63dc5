"""The server's forward pass: one step over runs of new tokens of many sequences, with all before them cached.

A step takes the next tokens of every running request (decode) and pieces of prompts (prefill) together. Whatever else
is in the batch, and however much of a context was cached, a token's bits are the same (`exact_forward.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slime_swe.embedded.exact_forward import ExactModel, attention
from slime_swe.embedded.kv_cache import KVCache
from slime_swe.embedded.model import Qwen2


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


class Decoder:
    """A Qwen2's weights over a KVCache."""

    def __init__(self, model: Qwen2, cache: KVCache) -> None:
        self.cache = cache
        self.load(model)
        self.turns = self.exact.turns(torch.arange(cache.max_length))

    def load(self, model: Qwen2) -> None:
        """Take over the weights of `model`, which must have the same architecture."""
        self.exact = ExactModel(model)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Logits [sum(wanted), V] of the last `wanted` tokens of each span, laid end to end.

        Writes the tokens' keys and values into the cache; what stands before each span must be there.
        """
        exact = self.exact
        tokens, positions, slots = self._inputs(spans)
        turns, x = self.turns[torch.from_numpy(positions)], exact.embedding[torch.from_numpy(tokens)]
        for index, layer in enumerate(exact.layers):
            query, keys, values = exact.project(layer, x, turns)
            self.cache.write(index, slots, positions, keys.numpy(), values.numpy())
            if index == len(exact.layers) - 1:  # of other rows nothing but keys and values is of use
                chosen = self._rows(spans, wanted)
                x, query = x[chosen], query[chosen]
                spans = [span.tail(count) for span, count in zip(spans, wanted, strict=True) if count]
            if spans:
                x = exact.finish(layer, x, self._attend(index, spans, query))
        return exact.logits(x)

    def _attend(self, layer: int, spans: Sequence[Span], query: Tensor) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        contexts = ((keys[span.slot, :, : span.end], values[span.slot, :, : span.end]) for span in spans)
        return attention(query, [len(span.tokens) for span in spans], contexts, self.exact.groups)

    def _inputs(self, spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token, position and slot of each row."""
        tokens = np.concatenate([span.tokens for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        slots = np.repeat([span.slot for span in spans], [len(span.tokens) for span in spans])
        return tokens, positions, slots

    def _rows(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        ends = np.cumsum([len(span.tokens) for span in spans])
        rows = [row for end, count in zip(ends.tolist(), wanted, strict=True) for row in range(end - count, end)]
        return torch.tensor(rows, dtype=torch.int64)
