"""Which weights sampled."""

from __future__ import annotations

from slime_swe.launch.rehearse.checks import Measured
from slime_swe.launch.rehearse.evidence import Evidence
from slime_swe.recipes.rules import at_once, staleness


def versions(evidence: Evidence) -> Measured:
    """Sampled tokens whose weights are newer than those that train them, or older than the schedule allows; and those
    of no version, or of one that is no number. SLiME calls the weights that have seen n steps n + 1."""
    recipe = evidence.recipe
    bound = staleness(recipe) if recipe.rollout.schedule in ("carry", "continuous") else int(at_once(recipe))
    wrong = 0
    for number, samples in enumerate(evidence.rollouts):
        for sample in samples:
            for bit, version in zip(sample.mask_R, sample.versions_R(), strict=True):
                if bit and not (version and version.isdecimal() and 0 <= number + 1 - int(version) <= bound):
                    wrong += 1
    return Measured(wrong, 0)
