"""One generation request inside the engine: what was asked, what has been sampled, and why it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slime_swe.embedded.drafts import OwnPlaces
from slime_swe.embedded.sampling import SamplingParams

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Completion:
    """What a request ended with; `finish_reason` is SGLang's JSON object."""

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
        """How many tokens are yet to be computed before the next one can be sampled."""
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


def abort_reason(message: str = "Aborted", status_code: int | None = None) -> dict[str, Any]:
    """SGLang's finish reason of a request that was aborted; with a status code, the answer is that HTTP error."""
    return {"type": "abort", "message": message, "status_code": status_code, "err_type": None}
