"""The key/value cache: a fixed number of slots, each one session's whole context, reused by longest common prefix."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np

from slime_swe.embedded.model import ModelConfig


class CacheError(ValueError):
    """There is no memory for the cache; the message says how much was asked for."""


class KVCache:
    """Arrays and, per slot, which tokens they belong to. Not thread-safe: one engine thread owns it.

    `keys` and `values` are [layer, slot, head, position, dimension], float64.
    """

    def __init__(self, config: ModelConfig, slots: int, max_length: int) -> None:
        self.slots, self.max_length = slots, max_length
        layers, heads, dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.keys, self.values = (_zeros((layers, slots, heads, max_length, dim)) for _ in range(2))
        self.tokens = np.zeros((slots, max_length), dtype=np.int32)
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.spoiled = False  # whether some of what it holds may be infinite or not a number

    def record(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Note that the slot holds, or is about to hold, these tokens from position `start` on, and none after."""
        end = start + len(tokens)
        self.tokens[slot, start:end] = tokens
        self.lengths[slot] = end

    def write(self, layer: int, slots: np.ndarray, positions: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Keep the keys and values [tokens, heads, dimension] of some tokens."""
        self.keys[layer][slots, :, positions] = keys
        self.values[layer][slots, :, positions] = values

    def prefixes(self, tokens: np.ndarray) -> np.ndarray:
        """For every slot, how long a prefix of `tokens` it holds."""
        length = min(len(tokens), self.max_length)
        if length == 0:
            return np.zeros(self.slots, dtype=np.int64)
        unequal = self.tokens[:, :length] != tokens[:length].astype(np.int32)
        matches = np.where(unequal.any(axis=1), unequal.argmax(axis=1), length)
        return np.minimum(matches, self.lengths)

    def copy(self, source: int, target: int, common: int, length: int) -> None:
        """Make the first `length` positions of `target` those of `source`, `common` of which it has already."""
        for kept in (self.keys, self.values):
            kept[:, target, :, common:length] = kept[:, source, :, common:length]
        self.tokens[target, common:length] = self.tokens[source, common:length]
        self.lengths[target] = length

    def flush(self) -> None:
        """Forget what every slot holds.

        What stands after a run's own tokens is read too, at weight zero, and zero times NaN is NaN: a spoiled cache is
        zeroed. Others are not, which would touch memory that no request may ever need.
        """
        self.lengths[:] = 0
        if self.spoiled:
            self.keys.fill(0)
            self.values.fill(0)
            self.spoiled = False


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, in huge pages where the system has them, which reads a tenth faster (fewer TLB misses)."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape)
    count = math.prod(shape)
    try:
        memory = mmap.mmap(-1, count * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CacheError(
            f"no memory for half a key/value cache of {count >> 17} MiB ({error.strerror}): "
            "lower the number of slots or the context length"
        ) from error
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.float64, count=count).reshape(shape)
