"""What a rehearsal left behind, read once: the checks look at nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from slime_swe.launch.rehearse.dumps import Rolled, Step
from slime_swe.launch.rehearse.limits import Limits
from slime_swe.launch.rehearse.reference import Forward, Reference
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.records import Record

Figures = Mapping[str, Mapping[int, float]]  # SLiME's name of a figure -> step -> value


@dataclass(frozen=True)
class Trainer:
    """One run of SLiME's trainer. steps: by rollout. figures: SLiME's own. exports: rollout -> Hugging Face folder.

    arguments: what SLiME's and Megatron's parsers made of the command line. parameters: of each rank of tensor and
    pipeline parallelism, as Megatron counts them.
    """

    steps: Mapping[int, Step]
    figures: Figures
    exports: Mapping[int, Path]
    arguments: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """recipe: as it was rehearsed. limits: of the checks, on that platform. config: the toy's `config.json`.

    ends: tokens that end a turn, by the chat template.

    layout: the run of rollouts, training and weight updates. alone: the same rollouts, trained by one rank. resumed:
    the last of them again, after a resumption. converted: the toy, to Megatron's format and back. saved: the last
    checkpoint in Megatron's format, converted. skipped: `rollouts`, and why there are none, where batches of random
    tokens stand in their place.
    """

    recipe: Recipe
    limits: Limits
    asked: Mapping[str, Any]
    toy: Path
    config: Mapping[str, Any]
    ends: Sequence[int]
    rollouts: Sequence[Sequence[Rolled]]
    records: Sequence[Record]
    layout: Trainer
    alone: Trainer
    resumed: Trainer
    converted: Path
    saved: Path
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last rollout."""
        return len(self.rollouts) - 1

    def weights_of(self, version: int) -> Path:
        """Hugging Face folder of a weight version: SLiME calls the weights that have seen n steps n + 1."""
        return self.toy if version == 1 else self.layout.exports[version - 2]

    @cached_property
    def unknown_versions(self) -> set[str]:
        """Versions that tokens name, of which the run has exported no weights."""
        known = {"1", *(str(rollout + 2) for rollout in self.layout.exports)}
        spans = [span for samples in self.rollouts for sample in samples for span in sample.spans]
        return {name for name, _ in spans if name and name not in known}

    @cached_property
    def forwards(self) -> dict[tuple[int, int, int], Forward]:
        """(rollout, place, version) -> what Transformers makes of the sample with the weights of that version, where
        there are any."""
        wanted = [
            (version, rollout, place)
            for rollout, samples in enumerate(self.rollouts)
            for place, sample in enumerate(samples)
            for version in {int(name) for name in sample.versions_R() if name and name not in self.unknown_versions}
        ]
        found: dict[tuple[int, int, int], Forward] = {}
        for version in sorted({version for version, *_ in wanted}):
            model = Reference(self.config, self.weights_of(version))
            for _, rollout, place in (one for one in wanted if one[0] == version):
                tokens = self.rollouts[rollout][place].tokens
                found[rollout, place, version] = model.forward(tokens, self.recipe.rollout.temperature)
        return found


def vocabulary_of(config: Mapping[str, Any]) -> int:
    return int(config.get("text_config", config)["vocab_size"])


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.float() == other.float()).all())
