"""Grade a patch by its likeness to the gold patch: the oracle of kind `diff`."""

from __future__ import annotations

import asyncio

from slime_swe.data_sources.diff.oracle import DiffOracle
from slime_swe.data_sources.task import Task
from slime_swe.rewards.diff.compare import Comparison, compare, written_alike
from slime_swe.rewards.diff.published import quality
from slime_swe.rewards.diff.similarity import require_cydifflib
from slime_swe.rewards.grade import GradingSettings, Trial
from slime_swe.rollout.sandbox.base import Sandboxes


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Solved where both patches leave the same files. Correctness and quality are apart: the quality of a patch that is
    not right grows with its likeness up to 1, which is what a right one has. Raises `PatchError`, and `UserError` where
    cydifflib is not installed."""
    require_cydifflib()
    found, worth = await asyncio.to_thread(_compared, task, patch)
    files = len(found.similarities) / max(len(found.gold), len(found.answer), 1)
    log = "".join(f"{path}: {share:.4f}\n" for path, share in found.similarities.items())
    log += "".join(f"{path}: only the gold patch changes it\n" for path in sorted(found.gold - found.answer))
    log += "".join(f"{path}: the gold patch does not change it\n" for path in sorted(found.answer - found.gold))
    components = {"similarity": found.likeness, "file_match": files}
    return Trial(
        {"same_as_gold": found.same}, found.same, log, quality=1.0 if found.same else worth, components=components
    )


def _compared(task: Task, patch: str) -> tuple[Comparison, float]:
    """With the quality of a patch that is not right."""
    oracle = task.oracle
    assert isinstance(oracle, DiffOracle), oracle
    found = compare(task, patch)
    if not found.answer:
        return found, oracle.refused_quality
    if oracle.reward == "tokens":
        return found, written_alike(task, patch)
    return found, quality(oracle, found.similarities, found.gold, found.answer)
