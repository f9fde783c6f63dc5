"""`Platform`: what a recipe is rehearsed on. It states here what differs between a CPU and GPUs.

Adding one is a subclass in one file here, and its name in `PLATFORMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from slime_swe.dotted import load_registered
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.recipes.base import Recipe

PLATFORMS: Mapping[str, str] = {
    "cpu": "slime_swe.launch.rehearse.platforms.cpu.CpuPlatform",
    "gpu": "slime_swe.launch.rehearse.platforms.gpu.GpuPlatform",
}


class Platform(ABC):
    """One kind of machine, as this one is.

    name: that of `on=`.
    limits: those of the checks, by the precision that is computed in.
    learning_rate: AdamW's: a step changes exported weights and a toy's log-probabilities by far more than rounding.
    copies: the most copies of the model that a step's episodes are dealt to.
    settings: attributes of SLiME's `args` that no flag sets.
    """

    name: ClassVar[str]
    limits: ClassVar[Limits]
    learning_rate: ClassVar[float]
    copies: ClassVar[int]
    settings: ClassVar[Attributes] = {}

    @classmethod
    @abstractmethod
    def here(cls) -> Platform:
        """Return this machine. Raises `UserError`, with the remedy, where it or its Python lacks what is needed."""

    def computing(self) -> AbstractContextManager[None]:
        """Have Transformers compute in this process as on a CPU, inside the context."""
        return nullcontext()

    @abstractmethod
    def ranks(self, recipe: Recipe) -> int:
        """Return the trainer's ranks at most. Raises `UserError` where the machine is too small for the recipe."""

    @abstractmethod
    def placed(self, recipe: Recipe, ranks: int) -> Recipe:
        """Return the small recipe with its trainer's ranks, servers and SLiME's own flags as the machine takes them."""

    @abstractmethod
    def toy_values(self, toy: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the text part of a toy's `config.json` has otherwise here. own: that of the recipe's model."""

    @abstractmethod
    def unserved(self, recipe: Recipe) -> str:
        """Say why SGLang can't serve the recipe's model here; empty where it can."""

    @abstractmethod
    def routed(self, recipe: Recipe) -> bool:
        """Say whether a router of ours takes the place of SLiME's."""

    @abstractmethod
    def sections(self, recipe: Recipe, found: Mapping[str, Attributes]) -> dict[str, Attributes]:
        """Return the attributes of SLiME's `args` by heading. found: those that GPUs would get."""

    @abstractmethod
    def conversion(self) -> Attributes:
        """Return what SLiME's converter to Megatron's format wants beside the model."""

    @abstractmethod
    def program(self, script: Path) -> tuple[str, ...]:
        """Return the command that runs `train.py` or `train_async.py` on a Ray of its own."""

    @abstractmethod
    def tool(self, script: Path) -> tuple[str, ...]:
        """Return the command that runs one of SLiME's converters."""

    @abstractmethod
    def environment(self, recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
        """Return the environment variables of both commands."""

    @abstractmethod
    def stand_ins(self, recipe: Recipe) -> Mapping[str, str]:
        """Map each flag that differs here to the reason; flags that differ everywhere are in `jobs.REASONS`."""


# The gaps that are allowed between two computations of the same, by the precision that they are made in.
@dataclass(frozen=True)
class Limits:
    """Limits of the checks.

    figure: what many gaps come to, the largest or their mean.

    log_probability: gap of one token's log-probability, between two computations with the same weights, nats.
    updated: the same gap, with weights that two layouts have trained apart.
    loss: gap between two losses of a step, as a share of the sum of its terms' sizes.
    norm: gap of a gradient's norm, as a share of it.
    weight: gap of a tensor after a step that two layouts have made, as a share of the learning rate.
    experts: the least share of choices that are the same.
    repeated: gap of one token's log-probability, between two runs of the same step, nats.
    repeated_weight: gap of a tensor after two runs of the same step, as a share of the learning rate.
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
        """Return the figure of gaps of either sign; it is infinity where there are none."""
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
(`--ci-train-rollout-logprob-abs-diff-threshold`). Further: updated 0.003 and 1.2, loss 0.004 and 0.17, norm 0.01 and
1, weight 0.005 and 0.076, experts 0.99 and 0.80 (0.9 over 48 layers of Qwen3-30B-A3B in arXiv:2510.11370). Two runs of
one step on GPUs add up in another order, so that `repeated` is not 0. All of that with routing replay: without it one
near tie of two experts has come to 0.03 of the loss and 0.12 of the router's weights.
"""


def platform_of(name: str) -> Platform:
    """Return the platform `cpu` or `gpu`, as this machine is. Raises `UserError` where there is none such."""
    found: type[Platform] = load_registered(name, PLATFORMS, "on")
    return found.here()
