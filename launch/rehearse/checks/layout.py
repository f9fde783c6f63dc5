"""The recipe's layout of ranks beside one rank, on the same rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from slime_swe.launch.rehearse.checks import Measured, worst
from slime_swe.launch.rehearse.checks.loss import SMALL, loss_terms, size
from slime_swe.launch.rehearse.evidence import Evidence, Step, read_weights, same

LOSS, NORM = "train/loss", "train/grad_norm"
UNTRAINED = ("e_score_correction_bias",)  # which SLiME leaves as they are


def log_probabilities(evidence: Evidence) -> Measured:
    """The gap between the two of trained tokens, in the step where it is largest."""
    return Measured(worst(gaps(evidence)), evidence.limits.updated)


def loss(evidence: Evidence) -> Measured:
    """The largest difference of a step's loss, as a share of the sum of its terms' sizes, in its rollout."""
    steps = evidence.recipe.algorithm.steps_per_rollout
    sizes = {number: size(loss_terms(evidence, number)) for number in evidence.layout.steps}
    shares = (gap / sizes[step // steps] for step, gap in _differences(evidence, LOSS))
    return Measured(worst(shares), evidence.limits.loss)


def gradient_norm(evidence: Evidence) -> Measured:
    norms = evidence.layout.figures.get(NORM, {})
    shares = (gap / max(abs(norms.get(step, 0.0)), SMALL) for step, gap in _differences(evidence, NORM))
    return Measured(worst(shares), evidence.limits.norm)


def weights(evidence: Evidence) -> Measured:
    """The difference of a tensor's weights after the first step, as a share of the learning rate: of that tensor where
    it is largest."""
    ours, theirs = (trainer.exports[0] for trainer in (evidence.layout, evidence.alone))
    return Measured(worst(apart(evidence, ours, theirs).values()), evidence.limits.weight)


def moved(evidence: Evidence) -> Measured:
    """Tensors that no step has changed, of those that every sample's tokens pass through, or that hold NaN since."""
    before, after = read_weights(evidence.toy), read_weights(evidence.layout.exports[evidence.last])
    if not before.keys() <= after.keys():
        return Measured(float("inf"), 0)
    trained = [name for name in before if ".experts." not in name and not name.endswith(UNTRAINED)]
    kept = (same(before[name], after[name]) or not bool(after[name].isfinite().all()) for name in trained)
    return Measured(sum(kept), 0)


def apart(evidence: Evidence, one: Path, other: Path) -> dict[str, float]:
    """Tensor -> the difference of its weights in two Hugging Face folders, as a share of the learning rate."""
    ours, theirs, rate = read_weights(one), read_weights(other), evidence.recipe.optimizer.lr
    return {
        name: evidence.limits.over(ours[name].float() - theirs[name].float()) / rate
        if name in ours and name in theirs
        else float("inf")
        for name in ours.keys() | theirs.keys()
    }


def gaps(evidence: Evidence) -> Iterator[float]:
    """Of each step, over its trained tokens."""
    one, other = evidence.layout, evidence.alone
    if not one.steps or one.steps.keys() != other.steps.keys():
        yield float("inf")
    for number in one.steps.keys() & other.steps.keys():
        yield step_gap(evidence, one.steps[number], other.steps[number])


def step_gap(evidence: Evidence, one: Step, other: Step) -> float:
    if len(one.samples) != len(other.samples):
        return float("inf")
    found = []
    for ours, theirs in zip(one.samples, other.samples, strict=True):
        if ours.tokens != theirs.tokens:
            return float("inf")
        found.append((ours.log_probs_R - theirs.log_probs_R)[torch.tensor(ours.mask_R).bool()])
    return evidence.limits.over(torch.cat(found))


def _differences(evidence: Evidence, tag: str) -> Iterator[tuple[int, float]]:
    """Optimizer step -> that of a figure. A step that one of the two has not made differs without bound."""
    ours, theirs = (trainer.figures.get(tag, {}) for trainer in (evidence.layout, evidence.alone))
    for step in sorted(ours.keys() | theirs.keys()):
        yield step, abs(ours.get(step, math.inf) - theirs.get(step, -math.inf))


# Weights that are written and read again: by the converters, as exports, and by a run that is resumed.
def conversion(evidence: Evidence) -> Measured:
    """Tensors of the toy that are others, or gone, after its way to Megatron's format and back."""
    return Measured(different(evidence.toy, evidence.converted), 0)


def export(evidence: Evidence) -> Measured:
    """Tensors that the last export has otherwise than the last checkpoint, converted."""
    return Measured(different(evidence.layout.exports[evidence.last], evidence.saved), 0)


def resumed_log_probabilities(evidence: Evidence) -> Measured:
    """The gap of the last step's log-probabilities to those of the run that was not interrupted."""
    resumed, last, limit = evidence.resumed, evidence.last, evidence.limits.repeated
    if last not in resumed.steps:
        return Measured(float("inf"), limit)
    return Measured(step_gap(evidence, resumed.steps[last], evidence.layout.steps[last]), limit)


def resumed_weights(evidence: Evidence) -> Measured:
    """The difference of a tensor's weights after the last step to the run that was not interrupted, as a share of the
    learning rate: of that tensor where it is largest."""
    limit = evidence.limits.repeated_weight
    exports = [trainer.exports.get(evidence.last) for trainer in (evidence.resumed, evidence.layout)]
    if exports[0] is None or exports[1] is None:
        return Measured(float("inf"), limit)
    return Measured(worst(apart(evidence, exports[0], exports[1]).values()), limit)


def resumed_steps(evidence: Evidence) -> Measured:
    """Rollouts that the resumed run trained on beside the one that was left, or not; and the same of optimizer steps,
    which SLiME numbers through the whole run."""
    resumed, last = evidence.resumed, evidence.last
    steps = evidence.recipe.algorithm.steps_per_rollout
    made = set(resumed.figures.get(LOSS, {}))
    return Measured(len(set(resumed.steps) ^ {last}) + len(made ^ {*range(last * steps, (last + 1) * steps)}), 0)


def different(one: Path, other: Path) -> int:
    ours, theirs = read_weights(one), read_weights(other)
    missing = len(ours.keys() ^ theirs.keys())
    return missing + sum(not same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
