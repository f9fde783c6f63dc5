"""Sampling: each request's own parameters, and noise that is a pure function of (seed, position).

Every token is drawn by inverting the cumulative distribution at one uniform number, hashed from the request's
`sampling_seed` and the token's absolute position. So neither the other requests of a batch nor a restart from a
longer prompt changes what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from slime_swe.errors import UserError
from slime_swe.fields import Meta, read

GREEDY_BELOW = 1e-6  # as SGLang: a smaller temperature means the most likely token, scored at temperature 1

# Parameters of SGLang that would change what is sampled and that this engine does not have, with their neutral values.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "min_new_tokens": (0, None),
    "n": (1, None),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None, []),
    "logit_bias": (None, {}),
}
# Parameters that change nothing here, whatever they say.
WITHOUT_EFFECT = frozenset({"spaces_between_special_tokens", "stream_interval", "custom_params"})


class RequestError(ValueError):
    """A request cannot be served as it is; the mistake is the client's."""


@dataclass(frozen=True)
class SamplingParams:
    """The part of SGLang's `sampling_params` that this engine honours; `top_k` -1 means the whole vocabulary."""

    max_new_tokens: Annotated[int, Meta(ge=0, le=2**31)] = 128
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] = -1
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=64)] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Read a request's JSON; raises RequestError with each name, the value given and what is allowed."""
        values = {name: value for name, value in given.items() if value is not None and name not in WITHOUT_EFFECT}
        for name in [name for name in values if name in NEUTRAL]:
            if values.pop(name) not in NEUTRAL[name]:
                raise RequestError(f"{name}={given[name]!r} is not supported by the embedded engine; leave it out")
        if isinstance(values.get("stop"), str):
            values["stop"] = [values["stop"]]
        try:
            return read(cls, values, "sampling_params")
        except UserError as error:
            raise RequestError(str(error)) from error

    def faults(self) -> Iterator[str]:
        if self.top_k == 0:
            yield "top_k must be at least 1, or -1 for the whole vocabulary, got 0"
        if not -(2**63) <= (self.sampling_seed or 0) < 2**64:
            yield f"sampling_seed must be an integer of 64 bits, got {self.sampling_seed}"

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def truncated(self) -> bool:
        return self.top_p < 1 or self.top_k > 1 or self.min_p > 0


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Draw one number in [0, 1) per row, float64, from its seed and position (two rounds of SplitMix64; Steele et al.
    2014, https://doi.org/10.1145/2660193.2660195)."""
    seed = np.array([s % 2**64 for s in seeds], dtype=np.uint64)
    mixed = _splitmix(_splitmix(seed) + np.asarray(positions, dtype=np.uint64))
    numbers: np.ndarray = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _splitmix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)  # arrays of unsigned integers wrap around silently
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


@torch.inference_mode()
def sample(logits_RxV: Tensor, params: Sequence[SamplingParams], draws: np.ndarray) -> tuple[list[int], list[float]]:
    """Sample each of the first len(params) rows: a token, and its log-probability under softmax(logits / temperature).

    `draws` are those rows' uniform numbers. Truncation (top-k, top-p, min-p) changes what is drawn, not the
    log-probability, which is over the whole vocabulary; SGLang does the same, and a trainer recomputes it from
    logits / temperature. It is NaN where logits are. Only row-wise kernels are used, so no row depends on another.
    """
    logits = logits_RxV[: len(params)]
    temperature = [1.0 if p.temperature < GREEDY_BELOW else p.temperature for p in params]
    if any(t != 1.0 for t in temperature):
        logits = logits / torch.tensor(temperature, dtype=logits.dtype)[:, None]
    probs = torch.softmax(logits, dim=-1)
    chosen = _invert(_truncate(probs, params), torch.from_numpy(draws))
    greedy = [row for row, p in enumerate(params) if p.greedy]
    if greedy:
        chosen[greedy] = logits[greedy].argmax(dim=-1)
    return chosen.tolist(), log_probs_of(logits, probs, chosen)


def log_probs_of(logits_RxV: Tensor, probs_RxV: Tensor, tokens_R: Tensor) -> list[float]:
    """Return the log-probability of each row's token, the same bits whatever the other rows are; NaN where logits are.
    `probs` are the softmax of `logits`."""
    picked: list[float] = probs_RxV.gather(1, tokens_R[:, None])[:, 0].tolist()
    return [  # a probability below 1e-308 is 0, its logarithm is not infinite
        math.log(p) if p > 0 else float(logits_RxV[row].log_softmax(-1)[tokens_R[row]]) for row, p in enumerate(picked)
    ]


def _invert(probs_RxV: Tensor, draws_R: Tensor) -> Tensor:
    """Return the first token at which the cumulative weight exceeds draw × total; weights need not sum to 1."""
    cumulative = probs_RxV.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    chosen = torch.searchsorted(cumulative, draws_R[:, None] * total, right=True)[:, 0]
    if bool((chosen == probs_RxV.shape[1]).any()):
        # draw × total rounded up to total, which means the last token of non-zero weight; or the row holds NaN.
        chosen = torch.minimum(chosen, torch.searchsorted(cumulative, total)[:, 0]).clamp_max_(probs_RxV.shape[1] - 1)
    return chosen


def _truncate(probs_RxV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero what top-k, top-p (both of the whole distribution) and min-p leave out; ties go to lower ids."""
    rows = [row for row, p in enumerate(params) if p.truncated]
    if not rows:
        return probs_RxV
    chosen = [params[row] for row in rows]
    probs = probs_RxV[rows]
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1])
    top_k = torch.tensor([p.top_k if p.top_k > 0 else 2**31 for p in chosen])[:, None]
    top_p, min_p = (torch.tensor([getattr(p, name) for p in chosen])[:, None] for name in ("top_p", "min_p"))
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    keep = (rank < top_k) & (before < top_p) & (ordered >= min_p * ordered[:, :1])
    kept = probs_RxV.clone()
    kept[rows] = torch.zeros_like(probs).scatter_(1, index, ordered * keep)
    return kept
