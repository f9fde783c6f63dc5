"""The key/value cache: a fixed number of slots, each one session's whole context, reused by longest common prefix.

Keys are stored transposed, [layer, slot, head, dimension, position], so that every matrix product of attention is in
the row-major × row-major layout, in which a row of the result does not depend on how many rows there are.
"""

from __future__ import annotations

import contextlib
import hashlib
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


class KVCache:
    """Tensors and, per slot, which tokens they belong to. Not thread-safe: one engine thread owns it.

    `stop_ids` are the tokens that end a message; the first message of a context (a system prompt) is what sessions
    are likely to share, and attention is laid out around its end (`attention.py`).
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        max_length: int,
        device: torch.device,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.slots, self.max_length = slots, max_length
        # One position is scratch: rows that only pad a batch write there. The odd width keeps the rows of a key
        # matrix off the same cache set.
        self.width = round_up(max_length, ALIGN) + 16
        self.scratch = self.width - 1
        heads, dim = config.num_key_value_heads, config.head_dim
        self.keys = _zeros((config.num_hidden_layers, slots, heads, dim, self.width), device)
        self.values = _zeros((config.num_hidden_layers, slots, heads, self.width, dim), device)
        self.tokens = np.zeros((slots, max_length), dtype=np.int64)
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.stop_ids = stop_ids
        self._stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        self._stops = np.full(slots, -1, dtype=np.int64)  # position of each slot's first stop token
        self._digests: list[bytes] = [b""] * slots
        self._key_offsets = torch.arange(heads * dim, device=device) * self.width
        columns = torch.arange(heads, device=device)[:, None] * (self.width * dim) + torch.arange(dim, device=device)
        self._value_offsets = columns.flatten()

    def record(self, slot: int, start: int, tokens: Sequence[int] | np.ndarray) -> None:
        """Note that the slot holds, or is about to hold, these tokens from position `start` on, and none after."""
        end = start + len(tokens)
        self.tokens[slot, start:end] = tokens
        self.lengths[slot] = end
        if self._stops[slot] >= start:
            self._stops[slot] = -1
        if self._stops[slot] < 0:
            self._find_stop(slot, start, end)

    def record_one(self, slots: np.ndarray, positions: np.ndarray, tokens: np.ndarray) -> None:
        """`record` of one token for each of many slots."""
        self.tokens[slots, positions] = tokens
        self.lengths[slots] = positions + 1
        self._stops[slots[self._stops[slots] >= positions]] = -1
        for index in np.flatnonzero((self._stops[slots] < 0) & np.isin(tokens, self._stop_ids)):
            self._find_stop(slots[index], positions[index], positions[index] + 1)

    def _find_stop(self, slot: int, start: int, end: int) -> None:
        found = np.flatnonzero(np.isin(self.tokens[slot, start:end], self._stop_ids))
        if len(found):
            self._stops[slot] = start + found[0]
            first = self.tokens[slot, : self.boundary(slot, end)]
            self._digests[slot] = hashlib.blake2b(first.tobytes(), digest_size=16).digest()

    def stop(self, slot: int) -> int:
        """Position of the slot's first stop token, -1 if there is none."""
        return int(self._stops[slot])

    def boundary(self, slot: int, position: int) -> int:
        """Where attention from `position` divides the context: the end of the first message before it, rounded down
        to a multiple of ALIGN; 0 if there is none. A function of the tokens before `position` alone."""
        stop = int(self._stops[slot])
        return (stop + 1) // ALIGN * ALIGN if 0 <= stop < position else 0

    def first_message(self, slot: int) -> bytes:
        """Equal for slots that hold the same tokens up to the boundary."""
        return self._digests[slot]

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
        unequal = self.tokens[:, :length] != tokens[:length]
        matches = np.where(unequal.any(axis=1), unequal.argmax(axis=1), length)
        return np.minimum(matches, self.lengths)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of `target` those of `source`."""
        self.keys[:, target, ..., :length] = self.keys[:, source, ..., :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]
        self.record(target, 0, self.tokens[source, :length])

    def swap(self, a: int, b: int) -> None:
        """Exchange the contents of two slots. Equal tokens mean equal bits, so a common prefix stays where it is."""
        both = int(min(self.lengths[a], self.lengths[b]))
        unequal = self.tokens[a, :both] != self.tokens[b, :both]
        part = slice(int(unequal.argmax()) if unequal.any() else both, int(max(self.lengths[a], self.lengths[b])))
        for view in (self.keys[..., part], self.values[:, :, :, part]):
            kept = view[:, a].clone()
            view[:, a] = view[:, b]
            view[:, b] = kept
        self.tokens[[a, b], part] = self.tokens[[b, a], part]
        self.lengths[[a, b]] = self.lengths[[b, a]]
        self._stops[[a, b]] = self._stops[[b, a]]
        self._digests[a], self._digests[b] = self._digests[b], self._digests[a]

    def truncate(self, slot: int, length: int) -> None:
        """Forget what the slot holds from position `length` on."""
        self.record(slot, length, [])

    def flush(self) -> None:
        """Forget what every slot holds."""
        self.lengths[:] = 0
        self._stops[:] = -1


def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Zeros; on a CPU in huge pages where the system has them, which reads a tenth faster (fewer TLB misses)."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, device=device)
    count = math.prod(shape)
    memory = mmap.mmap(-1, count * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32, count=count).view(shape)
