"""Continuous batching: which requests sit in which slots, and what the next step computes.

Bookkeeping over a Decoder, driven by one thread (`engine.py`). A request's tokens and log-probabilities are a function
of its own tokens, parameters and seed and of the weights: nothing here can change them, only when they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from slime_swe.embedded.decoder import Decoder, Span
from slime_swe.embedded.drafts import Drafter
from slime_swe.embedded.requests import Decode, Request, abort_reason
from slime_swe.embedded.sampling import sample, uniforms
from slime_swe.rollout.replies import INITIAL_WEIGHTS

PREFILL_TOKENS = 512  # prompt tokens of one step, over all requests; longer prompts take several steps
WAIT_FOR_PREFIX = 16  # a request waits while another computes at least this many more tokens of its prefix
DRAFT_TOKENS = 7  # guesses per request and step


class Scheduler:
    """Waiting and active requests over the slots of a cache."""

    def __init__(self, decoder: Decoder, decode: Decode, draft_tokens: int = DRAFT_TOKENS) -> None:
        self.decoder = decoder
        self.drafter = Drafter(draft_tokens)
        self.cache = decoder.cache
        self.decode = decode
        self.weight_version = INITIAL_WEIGHTS
        self.waiting: deque[Request] = deque()
        self.active: dict[int, Request] = {}  # by slot, in order of admission
        self._free = np.ones(self.cache.slots, dtype=bool)
        self._released = np.zeros(self.cache.slots, dtype=np.int64)  # when each slot last became free
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
        spans: list[Span] = []
        wanted: list[int] = []
        sampled: list[tuple[Request, list[int]]] = []
        for request, span, guess in self._work():
            self.cache.record(span.slot, span.start, span.tokens)
            request.computed = min(span.end, len(request.tokens))
            spans.append(span)
            wanted.append(0 if request.missing else len(guess) + 1)
            if not request.missing:
                sampled.append((request, guess))
        logits = self.decoder.forward(spans, wanted)
        if sampled:
            self._hand_out(sampled, logits)

    def _work(self) -> Iterator[tuple[Request, Span, list[int]]]:
        """What to compute of each active request: its next piece of prompt, or its last token; and guesses after it."""
        budget = PREFILL_TOKENS
        for request in self.active.values():
            start, guess = request.computed, list[int]()
            tokens = request.tokens[start : start + max(budget, 1)]
            if len(tokens) == request.missing:
                room = request.params.max_new_tokens - len(request.log_probs) - 1
                guess = self.drafter.guess(request.tokens, request.places, room)
            elif budget == 0:
                continue
            if request.missing > 1:
                budget -= len(tokens)
            yield request, Span(request.slot, start, [*tokens, *guess]), guess

    def _hand_out(self, sampled: list[tuple[Request, list[int]]], logits: Tensor) -> None:
        """Sample a token for every row, and keep those of each request up to the first that was not guessed."""
        owners = [request for request, guess in sampled for _ in range(len(guess) + 1)]
        places = [len(request.tokens) + place for request, guess in sampled for place in range(len(guess) + 1)]
        draws = uniforms([request.seed for request in owners], places)
        tokens, log_probs = sample(logits, [request.params for request in owners], draws)
        row = 0
        for request, guess in sampled:
            end = row + len(guess) + 1
            self._accept(request, guess, tokens[row:end], log_probs[row:end])
            row = end

    def _accept(self, request: Request, guess: list[int], tokens: list[int], log_probs: list[float]) -> None:
        known = len(request.tokens)
        reason: dict[str, object] | None = None
        for place, (token, log_prob) in enumerate(zip(tokens, log_probs, strict=True)):
            if log_prob != log_prob:  # NaN
                self.cache.spoiled = True
                reason = abort_reason("the model's logits are not finite", 500)
            else:
                reason = request.append(token, log_prob, self.decode)
            if reason is not None or place == len(guess) or token != guess[place]:
                break
        request.computed = len(request.tokens) - 1
        self.cache.lengths[request.slot] = request.computed
        self.drafter.learn(request.tokens, known)
        if reason is not None:
            self._release(request)
            request.complete(reason, self.weight_version)

    def _release(self, request: Request) -> None:
        """Free the slot; it keeps what it holds until it is taken."""
        if request.slot >= 0:
            del self.active[request.slot]
            self._free[request.slot] = True
            self._clock += 1
            self._released[request.slot] = self._clock
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
        request.array = np.array(request.tokens, dtype=np.int32)
        tokens = request.array[:-1]  # the last token is always computed: its logits are needed
        matches = self.cache.prefixes(tokens)
        source = int(matches.argmax())
        length = int(matches[source])
        if any(_common(tokens, other.array) >= length + WAIT_FOR_PREFIX for other in prefilling):
            return False
        slot = self._choose(matches)
        self.cache.copy(source, slot, int(matches[slot]), length)
        request.slot, request.computed = slot, length
        if request.cached_tokens is None:
            request.cached_tokens = length
        self.active[slot] = request
        self._free[slot] = False
        return True

    def _choose(self, matches: np.ndarray) -> int:
        """The free slot to take: one whose whole content the request extends, else an empty one, else the oldest."""
        lengths = self.cache.lengths
        whole = self._free & (matches == lengths) & (lengths > 0)
        if whole.any():
            return int(np.where(whole, matches, -1).argmax())
        empty = self._free & (lengths == 0)
        if empty.any():
            return int(empty.argmax())
        return int(np.where(self._free, self._released, self._clock + 1).argmin())


def _common(tokens: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(tokens), len(other))
    unequal = tokens[:length] != other[:length]
    return int(unequal.argmax()) if unequal.any() else length
