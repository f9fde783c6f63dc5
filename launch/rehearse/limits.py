"""How far apart two computations of the same may be, by the precision that they are made in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Limits:
    """figure: what many gaps come to, the largest or their mean.

    log_probability: of one token, between two computations with the same weights, nats.
    updated: the same, with weights that two layouts have trained apart.
    loss: between two of a step, as a share of the sum of its terms' sizes.
    norm: of a gradient, as a share of it.
    weight: of a tensor after a step that two layouts have made, as a share of the learning rate.
    experts: share of choices that are the same, at least.
    repeated: of one token, between two runs of the same step.
    repeated_weight: of a tensor after two runs of the same step, as a share of the learning rate.
    """

    figure: Callable[[Tensor], Tensor]
    log_probability: float
    updated: float
    loss: float
    norm: float
    weight: float
    experts: float
    repeated: float
    repeated_weight: float

    def over(self, gaps: Tensor) -> float:
        """The figure of gaps of either sign; of none, infinity."""
        return float(self.figure(gaps.abs())) if gaps.numel() else float("inf")


FLOAT32 = Limits(
    figure=torch.amax,
    log_probability=1e-5,
    updated=5e-5,
    loss=1e-5,  # real rehearsals come to 2e-7; a halved loss to 0.05 and more
    norm=1e-4,
    weight=0.02,
    experts=0.999,  # where two are all but equally likely, rounding decides
    repeated=0.0,
    repeated_weight=0.0,
)
BFLOAT16 = Limits(
    figure=torch.mean,  # one token or weight may be far apart: of a router's near tie, or of a gradient near 0
    log_probability=0.05,
    updated=0.1,
    loss=0.02,
    norm=0.1,
    weight=0.05,
    experts=0.85,
    repeated=0.05,
    repeated_weight=0.05,
)
"""Between rounding and faults, both measured on a toy in bfloat16 on a CPU: tests/launch/rehearse/test_gpu_checks.py.

Rounding comes to 0.001 nats of a log-probability between trainer and server, and to 0.01 beside float32; the smallest
fault, another rotary base, to 0.11. Others report 0.011 of Qwen3-4B under SLiME and SGLang (vllm-project/vime#64) and
0.03 to 0.04, as the root mean square, of Qwen2.5-0.5B (ServiceNow/Fast-LLM#525); SLiME's own tests allow 0.1
(`--ci-train-rollout-logprob-abs-diff-threshold`). Further: updated 0.003 and 1.2, loss 0.002 and 0.3, norm 0.005 and
1, weight 0.005 and 0.07, experts 0.99 and 0.80 (0.9 over 48 layers of Qwen3-30B-A3B in arXiv:2510.11370). Two runs of
one step on GPUs add up in another order, so that `repeated` is not 0.
"""
