"""`Grammar`: what every reply of the policy follows, and which of its tokens may be trained.

At each place an engine cuts the policy's distribution to the tokens that the grammar allows, and samples from what is
left, scaled up to 1. The log-probability that it returns is that of the cut distribution (SGLang 0.5.15 masks the
logits before every softmax, `SGLANG_RETURN_ORIGINAL_LOGPROB` or not). The trainer computes that of the whole one.

Let `kept` be the share of the policy's probability that the allowed tokens have. A token of probability `p` is sampled
with `p / kept`. So `kept` is the ratio of the two, whatever token was sampled, and `1 - kept` is the total variation
distance between the two distributions. A token is trained where `kept` is 1: there, the policy has sampled it. Where
it is less, the gradient of the token's log-probability does not have a mean of 0, but of that of `log kept`: any
advantage, even the same one in every episode, would push the policy towards the grammar or away from it. A token that
the grammar forced is the extreme: `kept` is its own probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["regex", "ebnf"]  # as SGLang's sampling parameters are called
KINDS: tuple[Kind, ...] = ("regex", "ebnf")


@dataclass(frozen=True)
class Grammar:
    """The grammar that every reply follows. tolerance: a token is trained where `kept` differs from 1 by this much at
    most; None where nothing is trained, so that nobody has to know."""

    kind: Kind
    text: str
    tolerance: float | None = None

    @property
    def params(self) -> dict[str, str]:
        """The grammar as an engine's sampling parameters have it."""
        return {self.kind: self.text}


def follows_grammar(params: Mapping[str, Any]) -> bool:
    """Say whether the reply that these sampling parameters ask for follows a grammar."""
    return any(params.get(kind) for kind in KINDS)


def changed(sampled: Sequence[float], own: Sequence[float], tolerance: float) -> frozenset[int]:
    """Find the places at which the grammar has changed what is sampled by more than the tolerance.

    sampled: each token's log-probability as it was sampled. own: that of the policy alone; a token whose value is not
    finite counts as changed.
    """
    pairs = enumerate(zip(sampled, own, strict=True))
    return frozenset(at for at, (cut, whole) in pairs if not abs(math.expm1(min(whole - cut, 1.0))) <= tolerance)
