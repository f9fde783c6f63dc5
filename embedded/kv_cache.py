"""The key/value cache: a fixed number of slots, each one session's whole context, reused by longest common prefix.

Keys are stored transposed, [layer, slot, head, dimension, position], so that every matrix product of attention is in
the row-major × row-major layout, in which a row of the result does not depend on how many rows there are.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embedded.model import ModelConfig

ALIGN = 32  # columns of attention are computed in multiples of this


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class CacheError(ValueError):
    """There is no memory for the cache; the message says how much was asked for."""


class KVCache:
    """Tensors and, per slot, which tokens they belong to. Not thread-safe: one engine thread owns it."""

    def __init__(self, config: ModelConfig, slots: int, max_length: int, device: torch.device) -> None:
        self.slots, self.max_length = slots, max_length
        # One position is scratch: rows that only pad a batch write there. The odd width keeps the rows of a key
        # matrix off the same cache set.
        self.width = round_up(max_length, ALIGN) + 16
        self.scratch = self.width - 1
        layers, heads, dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.keys = _zeros((layers, slots, heads, dim, self.width), device)
        self.values = _zeros((layers, slots, heads, self.width, dim), device)
        # Views by layer and slot, made once: attention takes thousands of them a second.
        self.keys_of = [layer.unbind(0) for layer in self.keys.unbind(0)]
        self.values_of = [layer.unbind(0) for layer in self.values.unbind(0)]
        self.tokens = np.zeros((slots, max_length), dtype=np.int32)
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.spoiled = False  # whether some of what it holds may be infinite or not a number
        self._key_offsets = torch.arange(heads * dim, device=device) * self.width
        columns = torch.arange(heads, device=device)[:, None] * (self.width * dim) + torch.arange(dim, device=device)
        self._value_offsets = columns.flatten()

    def record(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Note that the slot holds, or is about to hold, these tokens from position `start` on, and none after."""
        end = start + len(tokens)
        self.tokens[slot, start:end] = tokens
        self.lengths[slot] = end

    def write_indices(self, slots: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Where in a layer's flattened keys and values the [heads × dim] numbers of each row go; two int64 vectors."""
        heads_dim = self._key_offsets.numel()
        start = slots * (heads_dim * self.width)
        keys = (start + columns)[:, None] + self._key_offsets
        values = (start + columns * self.keys.shape[3])[:, None] + self._value_offsets
        return keys.flatten(), values.flatten()

    def write(self, layer: int, indices: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        self.keys[layer].view(-1).scatter_(0, indices[0], keys.reshape(-1))
        self.values[layer].view(-1).scatter_(0, indices[1], values.reshape(-1))

    def prefixes(self, tokens: np.ndarray) -> np.ndarray:
        """For every slot, how long a prefix of `tokens` it holds."""
        length = min(len(tokens), self.max_length)
        if length == 0:
            return np.zeros(self.slots, dtype=np.int64)
        unequal = self.tokens[:, :length] != tokens[:length].astype(np.int32)
        matches = np.where(unequal.any(axis=1), unequal.argmax(axis=1), length)
        return np.minimum(matches, self.lengths)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of `target` those of `source`."""
        self.keys[:, target, ..., :length] = self.keys[:, source, ..., :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]
        self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target] = length

    def flush(self) -> None:
        """Forget what every slot holds.

        Columns that no token stands in are read too, at weight zero, and zero times NaN is NaN: a spoiled cache is
        zeroed. Others are not, which would touch memory that no request may ever need.
        """
        self.lengths[:] = 0
        if self.spoiled:
            self.keys.zero_()
            self.values.zero_()
            self.spoiled = False


def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Zeros; on a CPU in huge pages where the system has them, which reads a tenth faster (fewer TLB misses)."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, device=device)
    count = math.prod(shape)
    try:
        memory = mmap.mmap(-1, count * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CacheError(
            f"no memory for half a key/value cache of {count >> 18} MiB ({error.strerror}): "
            "lower the number of slots or the context length"
        ) from error
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32, count=count).view(shape)
