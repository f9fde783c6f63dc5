"""Does this machine's linear algebra give a row the same bits whatever the batch? Checked once, when the server starts.

The forward pass is laid out so that it does with MKL on x86 (`decoder.py`), but no BLAS promises it. Where the check
fails, the server still works; two runs with one seed may then differ.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embedded.decoder import Decoder
from embedded.kv_cache import BLOCK
from embedded.step import Span, Step

COMMON, TAIL = BLOCK, 12  # tokens that the probe sequences share, and tokens of their own


def batch_invariant(decoder: Decoder) -> bool:
    """Compare, bit for bit, sequences computed alone with the same ones in other slots, batches and pieces.

    Uses and then empties the cache, which must be idle. The last tokens of a probe are decoded one by one.
    """
    cache = decoder.cache
    length = min(COMMON + TAIL, cache.max_length)
    slots = [slot for slot in (0, 1, 5, 18, 33) if slot < cache.slots]
    probes = _probes(len(slots), length, decoder.config.vocab_size)
    alone = torch.stack([_prefill(decoder, [(0, probe, 0)])[-1] for probe in probes])
    cache.flush()
    starts = [length - 3 - 2 * index % (length - 4) for index in range(len(slots))]
    _prefill(decoder, [(slot, p[:n], 0) for slot, p, n in zip(slots, probes, starts, strict=True)])
    _prefill(decoder, [(slot, p[n:-2], n) for slot, p, n in zip(slots, probes, starts, strict=True)])
    _decode(decoder, slots, [int(p[-2]) for p in probes], length - 2)
    together = _decode(decoder, slots, [int(p[-1]) for p in probes], length - 1)
    cache.flush()
    return bool(torch.equal(alone, together))


def _probes(count: int, length: int, vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    common = rng.integers(0, vocab_size, min(COMMON, length))
    return [np.concatenate((common, rng.integers(0, vocab_size, length - len(common)))) for _ in range(count)]


def _prefill(decoder: Decoder, runs: list[tuple[int, np.ndarray, int]]) -> Tensor:
    spans = [Span(slot, start, tokens.tolist()) for slot, tokens, start in runs]
    step = Step(decoder.cache, [], spans)
    for span in spans:
        decoder.cache.tokens[span.slot, span.start : span.end] = span.tokens
    take = [row + len(span.tokens) - 1 for span, row in zip(spans, step.offsets, strict=True)]
    return decoder.forward(step, take)[: len(take)]


def _decode(decoder: Decoder, slots: list[int], tokens: list[int], position: int) -> Tensor:
    step = Step(decoder.cache, [(slot, token, position) for slot, token in zip(slots, tokens, strict=True)], [])
    decoder.cache.tokens[slots, position] = tokens
    return decoder.forward(step, slots)[: len(slots)]
