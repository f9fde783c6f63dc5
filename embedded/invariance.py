"""Does this machine's linear algebra give a row the same bits whatever the batch? Found out when the server starts.

The forward pass is laid out so that it does with MKL on x86 (`decoder.py`), but no BLAS promises it. Where no tiling
passes, the server still works; two runs with one seed may then differ.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embedded.attention import Span
from embedded.decoder import Decoder, Tiling
from embedded.scheduler import DRAFT_TOKENS

TILINGS = (Tiling(), Tiling(rows=96, queries=4), Tiling(rows=256, queries=16))
LENGTHS = (90, 97, 9, 200, 300, 270)
SLOTS = (0, 1, 5, 18, 33, 34)
LONGEST = DRAFT_TOKENS + 1  # tokens of a run in a step that samples


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
    whole = torch.stack([_forward(decoder, [Span(0, 0, probe)], last=LONGEST + 1) for probe in probes])
    cache.flush()
    middles = [(len(probe) - LONGEST) // 2 for probe in probes]
    places = list(zip(slots, probes, middles, strict=True))
    _forward(decoder, [Span(slot, 0, probe[:middle]) for slot, probe, middle in places])
    prompts = _forward(decoder, [Span(slot, middle, probe[middle:-LONGEST]) for slot, probe, middle in places])
    equal = torch.equal(whole[:, 0], prompts) and _decodes_alike(decoder, slots, probes, whole[:, 1:])
    cache.spoiled = not bool(whole.isfinite().all())
    cache.flush()
    return equal


def _decodes_alike(decoder: Decoder, slots: list[int], probes: list[list[int]], expected: Tensor) -> bool:
    """Compare the last LONGEST tokens' logits: token by token, in runs of every length, of mixed lengths, and alone."""
    singles = [_decode(decoder, slots, probes, back, [1] * len(slots)) for back in range(LONGEST, 0, -1)]
    equal = torch.equal(expected, torch.stack(singles, dim=1))
    mixed = [1 + place % LONGEST for place in range(len(slots))]
    for lengths in (*([length] * len(slots) for length in range(2, LONGEST + 1)), mixed):
        wanted = torch.cat([rows[:length] for rows, length in zip(expected, lengths, strict=True)])
        equal &= torch.equal(wanted, _decode(decoder, slots, probes, LONGEST, lengths))
    equal &= torch.equal(expected[0, -1:], _decode(decoder, slots[:1], probes[:1], 1, [1]))
    return equal


def _probes(lengths: list[int], decoder: Decoder) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, decoder.config.vocab_size, length).tolist() for length in lengths]


def _forward(decoder: Decoder, spans: list[Span], last: int = 1) -> Tensor:
    """Logits of the `last` tokens of each span, one after another."""
    ends = np.cumsum([len(span.tokens) for span in spans])
    take = [int(end) - back for end in ends for back in range(last, 0, -1)]
    return decoder.forward(spans, take)[: len(take)]


def _decode(decoder: Decoder, slots: list[int], probes: list[list[int]], back: int, lengths: list[int]) -> Tensor:
    """Logits of as many tokens of each probe as `lengths` says, from the one that stands `back` from its end."""
    places = zip(slots, probes, lengths, strict=True)
    spans = [Span(slot, len(probe) - back, probe[-back:][:length]) for slot, probe, length in places]
    count = sum(lengths)
    return decoder.forward(spans, range(count))[:count]
