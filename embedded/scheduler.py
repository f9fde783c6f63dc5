"""Continuous batching: which requests sit in which slots, and what the next step computes.

Bookkeeping over a Decoder, driven by one thread (`engine.py`). A request's tokens and log-probabilities are a function
of its own tokens, parameters and seed and of the weights: nothing here can change them, only when they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from embedded.decoder import Decoder
from embedded.kv_cache import round_up
from embedded.requests import Decode, Request, abort_reason
from embedded.sampling import sample, uniforms
from embedded.step import Span

PREFILL_TOKENS = 512  # prompt tokens of one step, over all requests; longer prompts take several steps
WAIT_FOR_PREFIX = 16  # a request waits while another computes at least this many more tokens of its prefix
COMPACT_BELOW = 0.75  # share of computed rows that run a request, below which slots are exchanged to close the gaps


class Scheduler:
    """Waiting and active requests over the slots of a cache."""

    def __init__(self, decoder: Decoder, decode: Decode, weight_version: str = "default") -> None:
        self.decoder = decoder
        self.cache = decoder.cache
        self.decode = decode
        self.weight_version = weight_version
        self.waiting: deque[Request] = deque()
        self.active: dict[int, Request] = {}  # by slot
        self._used = np.zeros(self.cache.slots, dtype=np.int64)  # when each slot was last released
        self._clock = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.active)

    def add(self, request: Request) -> None:
        if request.params.max_new_tokens == 0:
            request.complete({"type": "length", "length": 0}, self.weight_version)
        else:
            self.waiting.append(request)

    def abort(self, chosen: Callable[[Request], bool], message: str = "Aborted", status: int | None = None) -> int:
        """End the requests for which `chosen` is true; what they have sampled so far is returned to their clients,
        unless there is an HTTP error `status`.
        """
        ended = [request for request in (*self.active.values(), *self.waiting) if chosen(request)]
        self.waiting = deque(request for request in self.waiting if not chosen(request))
        for request in ended:
            self._release(request)
            request.complete(abort_reason(message, status), self.weight_version)
        return len(ended)

    def retract(self) -> None:
        """Put all active requests back in the queue, in order of arrival; they go on from what they have sampled."""
        active = sorted(self.active.values(), key=lambda request: request.arrived)
        for request in active:
            self._release(request)
        self.waiting.extendleft(reversed(active))

    def flush(self) -> bool:
        """Empty the cache; False if active requests are in the way."""
        if not self.active:
            self.cache.flush()
        return not self.active

    def step(self) -> None:
        """Admit what can be admitted, compute one step, hand out its tokens."""
        self._admit()
        self._compact()
        requests = list(self.active.values())
        rows = [request for request in requests if request.missing == 1]
        runs = _chunks([request for request in requests if request.missing > 1])
        self._note(rows, runs)
        decode = [(r.slot, r.tokens[-1], r.computed - 1) for r in rows]
        step = self.decoder.step(decode, [span for _, span in runs])
        take = [request.slot for request in rows]
        sampled = rows
        for (request, span), row in zip(runs, step.offsets, strict=True):
            if span.end == len(request.tokens):
                sampled = [*sampled, request]
                take.append(row + len(span.tokens) - 1)
        logits = self.decoder.forward(step, take)
        if sampled:
            draws = uniforms([r.seed for r in sampled], [len(r.tokens) for r in sampled])
            self._hand_out(sampled, *sample(logits, [r.params for r in sampled], draws))

    def _note(self, rows: list[Request], runs: list[tuple[Request, Span]]) -> None:
        """Record which tokens the step writes into the cache."""
        if rows:
            columns = [(r.slot, r.computed, r.tokens[-1]) for r in rows]
            self.cache.record_one(*np.array(columns, dtype=np.int64).T)
        for request in rows:
            request.computed += 1
        for request, span in runs:
            self.cache.record(span.slot, span.start, span.tokens)
            request.computed = span.end

    def _hand_out(self, requests: list[Request], tokens: list[int], log_probs: list[float]) -> None:
        for request, token, log_prob in zip(requests, tokens, log_probs, strict=True):
            if log_prob != log_prob:  # NaN
                reason: dict[str, object] | None = abort_reason("the model's logits are not finite", 500)
            else:
                reason = request.append(token, log_prob, self.decode)
            if reason is not None:
                self._release(request)
                request.complete(reason, self.weight_version)

    def _release(self, request: Request) -> None:
        """Free the slot; it keeps what it holds until it is taken."""
        if request.slot >= 0:
            del self.active[request.slot]
            self._clock += 1
            self._used[request.slot] = self._clock
            request.slot = -1
            request.computed = 0

    def _admit(self) -> None:
        prefilling = [request for request in self.active.values() if request.missing > 1]
        budget = PREFILL_TOKENS - sum(request.missing for request in prefilling)
        kept: deque[Request] = deque()
        while self.waiting and budget > 0 and len(self.active) < self.cache.slots:
            request = self.waiting.popleft()
            if not self._place(request, prefilling):
                kept.append(request)
            elif request.missing > 1:
                prefilling.append(request)
                budget -= request.missing
        self.waiting.extendleft(reversed(kept))

    def _place(self, request: Request, prefilling: list[Request]) -> bool:
        """Give the request a slot that holds as much as possible of its prefix; False if waiting will hold more."""
        request.array = np.array(request.tokens, dtype=np.int64)
        tokens = request.array[:-1]  # the last token is always computed: its logits are needed
        matches = self.cache.prefixes(tokens)
        source = int(matches.argmax())
        length = int(matches[source])
        if any(_common(tokens, other.array) >= length + WAIT_FOR_PREFIX for other in prefilling):
            return False
        slot = self._choose(matches)
        if slot == source:
            self.cache.truncate(slot, length)
        else:
            self.cache.copy(source, slot, length)
        request.slot, request.computed = slot, length
        if request.cached_tokens is None:
            request.cached_tokens = length
        self.active[slot] = request
        return True

    def _choose(self, matches: np.ndarray) -> int:
        """The free slot to take: one whose whole content the request extends, else an empty one, else the oldest."""
        free = [slot for slot in range(self.cache.slots) if slot not in self.active]
        lengths = self.cache.lengths
        whole = [slot for slot in free if matches[slot] == lengths[slot] > 0]
        if whole:
            return max(whole, key=lambda slot: int(matches[slot]))
        return min(free, key=lambda slot: (lengths[slot] > 0, self._used[slot], slot))

    def _compact(self) -> None:
        """Move running requests to low slots when a step would compute many rows for nothing."""
        rows = sorted(slot for slot, request in self.active.items() if request.missing == 1)
        if not rows or round_up(len(rows), 16) >= COMPACT_BELOW * round_up(rows[-1] + 1, 16):
            return
        holes = [slot for slot in range(len(rows)) if slot not in set(rows)]
        for hole, slot in zip(holes, reversed(rows), strict=False):
            self._exchange(hole, slot)

    def _exchange(self, a: int, b: int) -> None:
        self.cache.swap(a, b)
        self._used[[a, b]] = self._used[[b, a]]
        moved = [(slot, self.active.pop(old)) for slot, old in ((a, b), (b, a)) if old in self.active]
        for slot, request in moved:
            request.slot = slot
            self.active[slot] = request


def _chunks(requests: list[Request]) -> list[tuple[Request, Span]]:
    """What of each request's prompt this step computes, oldest admission first, PREFILL_TOKENS in all."""
    budget = PREFILL_TOKENS
    runs = []
    for request in requests:
        tokens = request.tokens[request.computed : request.computed + budget]
        if tokens:
            runs.append((request, Span(request.slot, request.computed, tokens)))
            budget -= len(tokens)
    return runs


def _common(tokens: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(tokens), len(other))
    unequal = tokens[:length] != other[:length]
    return int(unequal.argmax()) if unequal.any() else length
