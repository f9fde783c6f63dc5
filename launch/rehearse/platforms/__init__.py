"""`Platform`: what a recipe is rehearsed on. It states here what differs between a CPU and GPUs.

Adding one is a subclass in one file here, and its name in `PLATFORMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from slime_swe.dotted import load_registered
from slime_swe.launch.args import Attributes
from slime_swe.launch.rehearse.limits import Limits
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.recipes.base import Recipe

PLATFORMS: Mapping[str, str] = {
    "cpu": "slime_swe.launch.rehearse.platforms.cpu.CpuPlatform",
    "gpu": "slime_swe.launch.rehearse.platforms.gpu.GpuPlatform",
}


class Platform(ABC):
    """One kind of machine, as this one is.

    name: that of `on=`.
    limits: of the checks, by the precision that is computed in.
    learning_rate: of AdamW: a step changes exported weights and a toy's log-probabilities by far more than rounding.
    copies: of the model, that a step's episodes are dealt to, at most.
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
        """This machine. Raises `UserError` with the remedy where it, or its Python, lacks what a rehearsal needs."""

    def computing(self) -> AbstractContextManager[None]:
        """While it lasts, Transformers computes in this process as on a CPU."""
        return nullcontext()

    @abstractmethod
    def ranks(self, recipe: Recipe) -> int:
        """Of the trainer, at most. Raises `UserError` where the machine is too small for the recipe."""

    @abstractmethod
    def placed(self, recipe: Recipe, ranks: int) -> Recipe:
        """The small recipe with its trainer's ranks, its servers and SLiME's own flags, as the machine takes them."""

    @abstractmethod
    def toy_values(self, toy: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """What a toy's `config.json` has otherwise here, of the text part; own: that of the recipe's model."""

    @abstractmethod
    def unserved(self, recipe: Recipe) -> str:
        """Why SGLang can't serve the recipe's model here; empty where it can."""

    @abstractmethod
    def routed(self, recipe: Recipe) -> bool:
        """Whether a router of ours takes the place of SLiME's."""

    @abstractmethod
    def sections(self, recipe: Recipe, found: Mapping[str, Attributes]) -> dict[str, Attributes]:
        """Heading -> attributes of SLiME's `args`, of what GPUs would get."""

    @abstractmethod
    def conversion(self) -> Attributes:
        """What SLiME's converter to Megatron's format wants beside the model."""

    @abstractmethod
    def program(self, script: Path) -> tuple[str, ...]:
        """The command that runs `train.py` or `train_async.py` on a Ray of its own."""

    @abstractmethod
    def tool(self, script: Path) -> tuple[str, ...]:
        """The command that runs one of SLiME's converters."""

    @abstractmethod
    def environment(self, recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
        """Variable -> value, of both."""

    @abstractmethod
    def stand_ins(self, recipe: Recipe) -> Mapping[str, str]:
        """Flag -> why it differs from the recipe's here; those that differ everywhere are in `differences.REASONS`."""


def platform_of(name: str) -> Platform:
    """The platform `cpu` or `gpu`, as this machine is. Raises `UserError` where there is none such."""
    found: type[Platform] = load_registered(name, PLATFORMS, "on")
    return found.here()
