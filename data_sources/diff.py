"""`DiffOracle`: a patch is compared with the gold patch, and nothing is run. `load` gives its task set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from slime_swe.data_sources.synthetic.tasks import load as load_synthetic
from slime_swe.data_sources.task import Oracle, Task, Workspace
from slime_swe.errors import UserError, unknown
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


# The synthetic tasks with their tests left out of the oracle: `load("train" | "heldout" | "unseen")`.
#
# Graded as `swe_rl`; `load("train/code_repair_rl")` and so on are graded by that reward.
def load(split: str) -> list[Task]:
    """Return the tasks of a split, always the same. Raises `UserError` for an unknown split or reward."""
    name, slash, reward = split.partition("/")
    if slash and reward not in REWARDS:
        raise UserError(unknown(f"reward of the tasks diff:{split}", reward, REWARDS))
    return [_without_tests(task, reward or REWARDS[0]) for task in load_synthetic(name)]


def _without_tests(task: Task, reward: str) -> Task:
    known = task.oracle
    oracle = DiffOracle(protected=known.protected, command=known.command, gold_patch=known.gold_patch, reward=reward)  # type: ignore[arg-type]
    return replace(task, id=task.id.replace("synthetic", "diff", 1), oracle=oracle, source="diff")
