"""Which experts tokens went to, and whether the trainer sends them there again."""

from __future__ import annotations

from slime_swe.launch.rehearse.checks import Measured, NotMadeError
from slime_swe.launch.rehearse.evidence import Evidence


def tables(evidence: Evidence) -> Measured:
    """The share of a sample's tokens and layers whose experts are those that Transformers' router chooses with the
    weights that sampled. Experts of context that an older version has read are its own, and are left out. 0 where a
    version is none of the run's."""
    _require(evidence)
    if evidence.unknown_versions:
        return Measured(0.0, evidence.limits.experts, at_least=True)
    equal = total = 0
    for (rollout, place, version), forward in evidence.forwards.items():
        sample = evidence.rollouts[rollout][place]
        rows = len(sample.tokens) - 1
        if {name for name in sample.versions_R() if name} != {str(version)}:
            continue
        if sample.experts is None or sample.experts.shape[0] != rows:
            return Measured(0.0, evidence.limits.experts, at_least=True)
        for layer, chosen in forward.experts.items():
            ours, theirs = sample.experts[:, layer].sort(-1)[0], chosen[:rows].sort(-1)[0]
            equal += int((ours == theirs).all(-1).sum())
            total += rows
    return Measured(equal / max(total, 1), evidence.limits.experts, at_least=True)


def replayed(evidence: Evidence) -> Measured:
    """Samples without a table of experts, and 1 for a trainer whose log does not say that it replays them."""
    _require(evidence)
    missing = sum(sample.experts is None for samples in evidence.rollouts for sample in samples)
    missing += evidence.layout.arguments.get("use_rollout_routing_replay") != "True"
    return Measured(missing, 0)


def _require(evidence: Evidence) -> None:
    if evidence.recipe.algorithm.routing_replay != "rollout":
        raise NotMadeError("the recipe does not replay the server's routing")
