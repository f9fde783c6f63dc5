"""Continuous batching: which requests sit in which slots, and what the next step computes.

Bookkeeping over a Decoder, driven by one thread (`engine.py`). A request's tokens and log-probabilities are a function
of its own tokens, parameters and seed and of the weights: nothing here can change them, only when they come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from slime_swe.embedded.exact_forward import Decoder, Span
from slime_swe.embedded.sampling import SamplingParams, sample, uniforms
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
        """Yield what each active request computes: its next piece of prompt or its last token, and guesses after it."""
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
        """Choose a free slot: one whose whole content the request extends, else an empty one, else the oldest."""
        lengths = self.cache.lengths
        whole = self._free & (matches == lengths) & (lengths > 0)
        if whole.any():
            return int(np.where(whole, matches, -1).argmax())
        empty = self._free & (lengths == 0)
        if empty.any():
            return int(empty.argmax())
        return int(np.where(self._free, self._released, self._clock + 1).argmin())


# One generation request inside the engine: what was asked, what has been sampled, and why it ended.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Completion:
    """The result of a request; `finish_reason` is SGLang's JSON object."""

    output_ids: list[int]
    log_probs: list[float]
    finish_reason: dict[str, Any]
    prompt_tokens: int
    cached_tokens: int
    weight_version: str


@dataclass(eq=False)
class Request:
    """`tokens` is the prompt and then everything sampled; `done` is called once, on the engine's thread."""

    rid: str
    tokens: list[int]
    params: SamplingParams
    seed: int
    eos_ids: frozenset[int]
    done: Callable[[Completion], None]
    log_probs: list[float] = field(default_factory=list)
    slot: int = -1  # none
    computed: int = 0  # positions whose keys and values are in the slot
    cached_tokens: int | None = None
    arrived: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.array = np.empty(0, dtype=np.int64)  # `tokens` when it was last given a slot
        self.places = OwnPlaces()

    @property
    def missing(self) -> int:
        """The number of tokens that are yet to be computed before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def append(self, token: int, log_prob: float, decode: Decode) -> dict[str, Any] | None:
        """Record a sampled token; return the finish reason if it was the last.

        The order of the checks is SGLang's: length, stop strings, then stop tokens.
        """
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        if len(self.log_probs) >= self.params.max_new_tokens:
            return {"type": "length", "length": self.params.max_new_tokens}
        if self.params.stop and (matched := self._matched_string(decode)):
            return {"type": "stop", "matched": matched}
        if not self.params.ignore_eos and (token in self.eos_ids or token in self.params.stop_token_ids):
            return {"type": "stop", "matched": token}
        return None

    def _matched_string(self, decode: Decode) -> str | None:
        # Every token is at least one byte, so this many of the last tokens hold any match that ends now.
        reach = max(len(stop.encode()) for stop in self.params.stop) + 1
        tail = decode(self.output_ids[-reach:])
        return next((stop for stop in self.params.stop if stop in tail), None)

    def complete(self, finish_reason: dict[str, Any], weight_version: str) -> None:
        self.done(
            Completion(
                output_ids=self.output_ids,
                log_probs=self.log_probs,
                finish_reason=finish_reason,
                prompt_tokens=self.prompt_length,
                cached_tokens=self.cached_tokens or 0,
                weight_version=weight_version,
            )
        )


# Guesses at a request's next tokens, so that one step can compute several of them.
#
# The guesses are checked: a position's token is sampled from logits computed with the true tokens before it, by the
# same draw, so whatever is guessed, the result is the same to the last bit (speculative decoding, Leviathan et al.
# 2023, arXiv:2211.17192, with an exact match instead of rejection sampling). Only the time depends on them.
#
# An agent copies: what it has just read, and what its siblings on the same task wrote. So a guess continues the text
# after an earlier place that looks like the present one: the same eight tokens in anything lately written by any
# request, else the same two tokens in the request's own context.
LONG, SHORT = 8, 2
REMEMBERED = 200_000  # places; a few tens of megabytes


class Drafter:
    def __init__(self, most: int) -> None:
        self.most = most
        self._written: dict[int, int] = {}  # hash of LONG tokens → the token that followed, the last time

    def learn(self, tokens: Sequence[int], start: int) -> None:
        """Remember what was written from position `start` on."""
        if len(self._written) > REMEMBERED:
            self._written.clear()
        for place in range(max(start, LONG), len(tokens)):
            self._written[hash(tuple(tokens[place - LONG : place]))] = tokens[place]

    def guess(self, tokens: list[int], own: OwnPlaces, most: int) -> list[int]:
        """Return at most `most` tokens that may follow."""
        most = min(most, self.most)
        if most <= 0:
            return []
        last = tuple(tokens[-LONG:])
        guess: list[int] = []
        while len(guess) < most and (token := self._written.get(hash(last))) is not None:
            guess.append(token)
            last = (*last[1:], token)
        return guess if len(guess) > 1 else own.after(tokens, most)


class OwnPlaces:
    """The place where each pair of tokens of one context was last seen."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._known = SHORT

    def after(self, tokens: list[int], most: int) -> list[int]:
        """Return what followed the last two tokens the last time they stood together, at most `most` tokens."""
        end = len(tokens)
        before = tokens[self._known - SHORT : end - 1]
        self._places.update(zip(pairwise(before), range(self._known, end), strict=False))
        self._known = max(self._known, end)
        place = self._places.get((tokens[-2], tokens[-1])) if end >= SHORT else None
        return [] if place is None else tokens[place : place + most]


def abort_reason(message: str = "Aborted", status_code: int | None = None) -> dict[str, Any]:
    """Return SGLang's finish reason of an aborted request; with a status code, the answer is that HTTP error."""
    return {"type": "abort", "message": message, "status_code": status_code, "err_type": None}


def _common(tokens: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the common prefix."""
    length = min(len(tokens), len(other))
    unequal = tokens[:length] != other[:length]
    return int(unequal.argmax()) if unequal.any() else length
