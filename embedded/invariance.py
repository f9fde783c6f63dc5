"""Does this machine's linear algebra give a row the same bits whatever the batch? Found out when the server starts.

The forward pass is laid out so that it does with MKL on x86 (`decoder.py`), but no BLAS promises it. Where no tiling
passes, the server still works; two runs with one seed may then differ.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embedded.decoder import Decoder, Tiling
from embedded.step import Span

TILINGS = (Tiling(), Tiling(rows=96, queries=4), Tiling(rows=256, queries=16))
COMMON = 70  # tokens of the first message that the probes share
LENGTHS = (90, 97, 131, 200, 300, 270)
SLOTS = (0, 1, 5, 18, 33, 34)


def make_invariant(decoder: Decoder) -> bool:
    """Set the cheapest tiling under which results don't depend on the batch; False, and the first, if none does."""
    for tiling in TILINGS:
        decoder.tiling = tiling
        if batch_invariant(decoder):
            return True
    decoder.tiling = TILINGS[0]
    return False


def batch_invariant(decoder: Decoder) -> bool:
    """Compare, bit for bit, sequences computed alone with the same ones in other slots, batches and pieces.

    Uses and then empties the cache, which must be idle.
    """
    cache = decoder.cache
    slots = [slot for slot in SLOTS if slot < cache.slots]
    probes = _probes([min(length, cache.max_length) for length in LENGTHS[: len(slots)]], decoder)
    whole = [_prefill(decoder, [Span(0, 0, probe)], last=3) for probe in probes]
    cache.flush()
    pieces = _prefill(decoder, [Span(slot, 0, p[: len(p) // 2]) for slot, p in zip(slots, probes, strict=True)])
    pieces = _prefill(
        decoder, [Span(slot, len(p) // 2, p[len(p) // 2 : -2]) for slot, p in zip(slots, probes, strict=True)]
    )
    steps = [_decode(decoder, slots, probes, back) for back in (2, 1)]
    cache.flush()
    _prefill(decoder, [Span(0, 0, probes[0][:-1])])
    single = _decode(decoder, [0], probes[:1], 1)
    cache.flush()
    together = torch.stack((pieces, *steps), dim=1)
    return bool(torch.equal(torch.stack(whole), together)) and bool(torch.equal(whole[0][-1:], single))


def _probes(lengths: list[int], decoder: Decoder) -> list[list[int]]:
    """Random tokens, of which the first are common and end with a stop token, if the cache knows any."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, decoder.config.vocab_size, COMMON).tolist()
    common[-1] = min(decoder.cache.stop_ids, default=common[-1])
    return [(common + rng.integers(0, decoder.config.vocab_size, length).tolist())[:length] for length in lengths]


def _prefill(decoder: Decoder, spans: list[Span], last: int = 1) -> Tensor:
    """Logits of the `last` tokens of each span, one after another."""
    for span in spans:
        decoder.cache.record(span.slot, span.start, span.tokens)
    step = decoder.step([], spans)
    ends = [row + len(span.tokens) for span, row in zip(spans, step.offsets, strict=True)]
    take = [end - back for end in ends for back in range(last, 0, -1)]
    return decoder.forward(step, take)[: len(take)]


def _decode(decoder: Decoder, slots: list[int], probes: list[list[int]], back: int) -> Tensor:
    """Logits of the token that is `back` from the end of each probe."""
    rows = [(slot, probe[-back], len(probe) - back) for slot, probe in zip(slots, probes, strict=True)]
    for slot, token, position in rows:
        decoder.cache.record(slot, position, [token])
    return decoder.forward(decoder.step(rows, []), slots)[: len(slots)]
