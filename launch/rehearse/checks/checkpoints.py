"""Weights that are written and read again: by the converters, as exports, and by a run that is resumed."""

from __future__ import annotations

from pathlib import Path

from slime_swe.launch.rehearse.checks import Measured, worst
from slime_swe.launch.rehearse.checks.layout import LOSS, apart, step_gap
from slime_swe.launch.rehearse.evidence import Evidence, same
from slime_swe.launch.rehearse.reference import read_weights


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
