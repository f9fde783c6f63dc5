"""The loss that SLiME reports, computed anew from what the trainer had of each sample."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from slime_swe.launch.rehearse.checks import Measured, NotMadeError, worst
from slime_swe.launch.rehearse.evidence import Evidence, Trained

LOSS, GAPS = "train/pg_loss", "train/train_rollout_logprob_abs_diff"
SMALL = 1e-9  # shares of what is 0 are taken of this


def loss(evidence: Evidence) -> Measured:
    """The largest difference of a step, where a rollout is one optimizer step and the ratio to the old policy is 1: of
    the loss, as a share of the sum of its terms' sizes; and of the mean gap between trainer and server, as a share
    of itself. SLiME weighs the tokens of both alike, and gaps do not cancel: a loss by episodes is all but 0, so that a
    factor shows in the gap alone."""
    algorithm = evidence.recipe.algorithm
    if algorithm.steps_per_rollout > 1 or algorithm.rollout_logprobs or algorithm.keep_old_actor:
        raise NotMadeError("the ratio to the old policy is not 1 throughout")
    shares = list[float]()
    for number, step in evidence.layout.steps.items():
        reduction, terms = algorithm.reduction, loss_terms(evidence, number)
        gaps = [(one.log_probs_R - one.rollout_log_probs_R).abs() * torch.tensor(one.mask_R) for one in step.samples]
        by_episode = "trajectory" if reduction == "constant" else reduction  # ours, for the loss alone
        for tag, expected in ((LOSS, terms), (GAPS, _reduced(evidence, number, gaps, by_episode))):
            reported = evidence.layout.figures.get(tag, {}).get(number, math.nan)
            shares.append(abs(reported - float(expected.sum())) / size(expected))
    return Measured(worst(shares), evidence.limits.loss)


def loss_terms(evidence: Evidence, number: int) -> Tensor:
    """What each token adds to the policy-gradient loss of a rollout's step."""
    parts = [_weighted(evidence, one) for one in evidence.layout.steps[number].samples]
    return _reduced(evidence, number, parts, evidence.recipe.algorithm.reduction)


def size(terms: Tensor) -> float:
    """Of a sum whose terms cancel: that of their absolute values."""
    return max(float(terms.abs().sum()), SMALL)


def _reduced(evidence: Evidence, number: int, parts: Sequence[Tensor], reduction: str) -> Tensor:
    """Each token's value, divided as the reduction says: their sum is the figure of the step."""
    tokens = [int(sum(one.mask_R)) for one in evidence.layout.steps[number].samples]
    if reduction == "token":
        return torch.cat(list(parts)).double() / max(1, sum(max(1, count) for count in tokens))
    episodes = defaultdict[int, list[int]](list)
    for place, sample in enumerate(evidence.rollouts[number]):
        episodes[sample.trajectory].append(place)
    terms = list[Tensor]()
    for places in episodes.values():
        whole = sum(tokens[place] for place in places)
        count = evidence.recipe.rollout.max_context if reduction == "constant" else whole
        terms += [parts[place].double() / max(1, count) / len(episodes) for place in places]
    return torch.cat(terms)


def _weighted(evidence: Evidence, one: Trained) -> Tensor:
    """Each trained token's term: its advantage, weighed for the difference between server and trainer."""
    algorithm = evidence.recipe.algorithm
    mask = torch.tensor(one.mask_R, dtype=torch.float32)
    ratio = torch.exp(one.log_probs_R - one.rollout_log_probs_R)
    low, high = algorithm.mismatch_low, algorithm.mismatch_high
    weight = {"none": torch.ones_like(ratio), "truncate": ratio.clamp(low, high)}.get(
        algorithm.mismatch, torch.where((ratio >= low) & (ratio <= high), ratio, torch.zeros_like(ratio))
    )
    return -one.advantages_R * weight * mask
