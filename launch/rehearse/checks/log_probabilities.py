"""What a token's probability was to the server, to the trainer and to Transformers."""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor, cat, tensor

from slime_swe.launch.rehearse.checks import Measured, worst
from slime_swe.launch.rehearse.evidence import Evidence
from slime_swe.recipes.rules import at_once


def before_updates(evidence: Evidence) -> Measured:
    """The gap between trainer and server over sampled tokens, where both have the same weights: in the first rollout,
    and in each one where sampling waits for the update. Where nothing serves, Transformers is the server."""
    figures = []
    for number, step in evidence.layout.steps.items():
        if number and (at_once(evidence.recipe) or evidence.skipped):
            continue
        if len(evidence.rollouts[number]) != len(step.samples):
            figures.append(float("inf"))
            continue
        pairs = zip(evidence.rollouts[number], step.samples, strict=True)
        gaps = [(trained.log_probs_R - tensor(rolled.log_probs_R))[rolled.sampled] for rolled, trained in pairs]
        figures.append(evidence.limits.over(cat(gaps)))
    return Measured(worst(figures), evidence.limits.log_probability)


def after_updates(evidence: Evidence) -> Measured:
    """The gap between the server and Transformers, which has the weights that SLiME exported for the version that the
    server names: infinite where it names another."""
    if evidence.unknown_versions:
        return Measured(float("inf"), evidence.limits.log_probability)
    gaps = defaultdict[int, list[Tensor]](list)
    for (rollout, place, version), forward in evidence.forwards.items():
        sample = evidence.rollouts[rollout][place]
        start = len(sample.tokens) - sample.length
        places = [at for at, name in enumerate(sample.versions_R()) if name == str(version)]
        gaps[version].append((forward.log_probs_T[start - 1 :] - tensor(sample.log_probs_R))[places])
    figures = [evidence.limits.over(cat(found)) for found in gaps.values()]
    return Measured(worst(figures), evidence.limits.log_probability)
