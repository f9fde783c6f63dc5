"""What one forward pass computes: one token of each running slot, and runs of new tokens of others, packed as rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embedded.kv_cache import ALIGN, KVCache, round_up

SHARED_BY = 4  # a first message is read once for all of a batch from this many sessions on


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
class Run:
    """Tokens of one slot in consecutive rows, whose attention divides the context at the same `boundary`."""

    slot: int
    row: int
    start: int
    length: int
    boundary: int
    message: bytes  # what stands before the boundary

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class Batch:
    """Runs whose attention is computed together: their slots, the row and the position of each of their tokens [n, T]
    (a shorter run repeats its last), the boundary, the end of the longest rounded up to a multiple of ALIGN, and a
    slot whose first positions, up to the boundary, are those of all of them, if so."""

    slots: Sequence[int]
    rows: np.ndarray
    positions: np.ndarray
    boundary: int
    end: int
    shared: int | None


class Step:
    """Rows 0 … `rows`-1 are slots 0 … `rows`-1, of which those in `decode` run; then come the tokens of the spans, in
    order (`offsets`), then padding. Slots that don't run, and padding, are computed and ignored.

    There are at least `min_rows` rows, and a multiple of 16. The tokens must be recorded in the cache already.
    """

    def __init__(
        self, cache: KVCache, decode: Sequence[tuple[int, int, int]], spans: Sequence[Span], min_rows: int = 16
    ) -> None:
        """`decode` holds (slot, token, position) of each running slot."""
        self.cache, self.spans = cache, spans
        self.rows = min(round_up(max((slot for slot, _, _ in decode), default=-1) + 1, 16), cache.slots)
        lengths = [len(span.tokens) for span in spans]
        self.offsets = [self.rows + sum(lengths[:index]) for index in range(len(lengths))]
        self.size = max(round_up(self.rows + sum(lengths), 16), min_rows)
        self._pack(decode)
        # A batch of all slots comes first: the rows of slots that are in other batches too are overwritten by those.
        batches = self._batches([*self._running(decode), *self._runs()])
        self.batches = sorted(batches, key=lambda batch: not isinstance(batch.slots, range))

    def order(self) -> np.ndarray:
        """For each row of the step, which of the batches' outputs, laid end to end, is its own."""
        rows = np.concatenate([batch.rows.ravel() for batch in self.batches])
        order = np.zeros(self.size, dtype=np.int64)
        order[rows] = np.arange(len(rows))
        return order

    def _pack(self, decode: Sequence[tuple[int, int, int]]) -> None:
        self.tokens = np.zeros(self.size, dtype=np.int64)
        self.positions = np.zeros(self.size, dtype=np.int64)
        self.slots = np.zeros(self.size, dtype=np.int64)
        self.columns = np.full(self.size, self.cache.scratch, dtype=np.int64)
        if decode:
            rows, tokens, places = np.array(decode, dtype=np.int64).T
            self.tokens[rows], self.slots[rows] = tokens, rows
            self.positions[rows] = self.columns[rows] = places
        for span, row in zip(self.spans, self.offsets, strict=True):
            part = slice(row, row + len(span.tokens))
            self.tokens[part], self.slots[part] = span.tokens, span.slot
            self.positions[part] = self.columns[part] = np.arange(span.start, span.end)

    def _running(self, decode: Sequence[tuple[int, int, int]]) -> Iterator[Run]:
        for slot, _, position in decode:
            yield self._run(slot, slot, position, 1)

    def _runs(self) -> Iterator[Run]:
        """The spans, those that reach past the end of their first message in two parts."""
        for span, row in zip(self.spans, self.offsets, strict=True):
            cut = max(0, min(self.cache.stop(span.slot) + 1 - span.start, len(span.tokens)))
            for begin, end in ((0, cut), (cut, len(span.tokens))):
                if begin < end:
                    yield self._run(span.slot, row + begin, span.start + begin, end - begin)

    def _run(self, slot: int, row: int, start: int, length: int) -> Run:
        boundary = self.cache.boundary(slot, start)
        return Run(slot, row, start, length, boundary, self.cache.first_message(slot) if boundary else b"")

    def _batches(self, runs: list[Run]) -> Iterator[Batch]:
        """Runs of similar length, with the same boundary, and with the same message before it if many have it."""
        counts = Counter((run.boundary, run.message) for run in runs)
        groups: dict[tuple[bool, int, int, bytes], list[Run]] = defaultdict(list)
        for run in runs:
            message = run.message if counts[run.boundary, run.message] >= SHARED_BY else b""
            length = -1 if run.row < self.rows else (run.length - 1).bit_length()
            groups[run.row < self.rows, length, run.boundary, message].append(run)
        for (running, _, boundary, message), members in groups.items():
            shared = members[0].slot if message else None
            if running and 2 * len(members) > self.rows:
                yield self._whole(members, boundary, shared)
            else:
                yield self._chosen(members, boundary, shared)

    def _whole(self, runs: list[Run], boundary: int, shared: int | None) -> Batch:
        """All slots from 0 on, so that the cache is read in place; those that are none of `runs` see one column."""
        positions = np.full(self.rows, boundary, dtype=np.int64)
        positions[[run.row for run in runs]] = [run.start for run in runs]
        end = round_up(max(run.end for run in runs), ALIGN)
        rows = np.arange(self.rows)
        return Batch(range(self.rows), rows[:, None], positions[:, None], boundary, end, shared)

    def _chosen(self, runs: list[Run], boundary: int, shared: int | None) -> Batch:
        tokens = np.arange(max(run.length for run in runs))
        places = np.stack([np.minimum(tokens, run.length - 1) for run in runs])
        rows = places + np.array([[run.row] for run in runs])
        positions = places + np.array([[run.start] for run in runs])
        end = round_up(max(run.end for run in runs), ALIGN)
        return Batch([run.slot for run in runs], rows, positions, boundary, end, shared)
