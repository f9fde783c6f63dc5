"""What a rank holds, beside what the planner counts."""

from __future__ import annotations

from itertools import product

from slime_swe.launch.plan.training import layout_of, shard
from slime_swe.launch.rehearse.checks import Measured, NotMadeError, worst
from slime_swe.launch.rehearse.evidence import Evidence


def memory(evidence: Evidence) -> Measured:
    """The largest share by which the parameters of a rank, as Megatron counts them, differ from the planner's. Weights,
    gradients and optimizer states are multiples of these. Each rank of tensor and pipeline parallelism is looked at."""
    counted = evidence.layout.parameters
    ways = evidence.recipe.parallel
    if missing := {*product(range(ways.tp), range(ways.pp))} - counted.keys():
        raise NotMadeError(f"the trainer's log does not say how many parameters ranks {sorted(missing)} have")
    layout = layout_of(evidence.recipe)
    planned = {stage: shard(evidence.recipe.model.shape, layout, stage).parameters for _, stage in counted}
    return Measured(worst(abs(found / planned[stage] - 1) for (_, stage), found in counted.items()), 0.0)
