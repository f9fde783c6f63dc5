"""`DiffOracle`: a patch is compared with the gold patch, and nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from slime_swe.data_sources.task import Oracle, Workspace
from slime_swe.fields import Meta

REWARDS = ("swe_rl", "code_repair_rl", "tokens")


@dataclass(frozen=True)
class DiffOracle(Oracle):
    """Grades tasks without tests: a task is solved where a patch leaves the files as the gold patch does, but for
    `protected` ones.

    reward: what any other patch is worth in mode `fraction` (`rewards/diff.py`; `tokens`: by the runs of tokens that it
    writes as the gold patch does). similarity_weight, files_weight: of `code_repair_rl`; they add up to 1. Of a
    workspace with an image the patches' texts are compared, else the files that they leave.
    """

    kind: ClassVar[str] = "diff"
    grader: ClassVar[str] = "slime_swe.rewards.diff.try_patch"
    deterministic: ClassVar[bool] = True
    by_degree: ClassVar[bool] = True

    fail_to_pass: tuple[str, ...] = ("same_as_gold",)
    reward: Literal["swe_rl", "code_repair_rl", "tokens"] = "swe_rl"
    similarity_weight: Annotated[float, Meta(ge=0, le=1)] = 0.8
    files_weight: Annotated[float, Meta(ge=0, le=1)] = 0.2

    @property
    def refused_quality(self) -> float:
        return -1.0 if self.reward == "swe_rl" else 0.0

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if not self.gold_patch.strip():
            yield "gold_patch must be what patches are compared with, got ''"
        if self.fail_to_pass != ("same_as_gold",) or self.pass_to_pass:
            yield "fail_to_pass and pass_to_pass are not for an oracle of kind 'diff', which has no tests"
        if abs(self.similarity_weight + self.files_weight - 1) > 1e-9:
            total = self.similarity_weight + self.files_weight
            yield f"similarity_weight and files_weight must add up to 1, got {total:g}"

    def faults_in(self, workspace: Workspace) -> Iterator[str]:
        yield from super().faults_in(workspace)
        if workspace.image is None and not workspace.files:
            yield "workspace must have the files that the gold patch changes"
