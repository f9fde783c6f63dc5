from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import here_in

RULES = (
    "algorithm.group_filter=slime_swe.rewards.slime_plugin.keep_group", "algorithm.steps_per_rollout=1",
    "algorithm.std_normalization=true", "rollout.max_turns=6", "rollout.mask_truncated=[max_turns,context_full]",
    "reward.overlong_turns=4",
)  # fmt: skip


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A real run of `tiny_cpu` with a group filter, masks and penalties: two rollouts of two groups of four."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["rollout.batch_size=2", "rollout.samples_per_task=4", "run.num_rollouts=2", "data.eval={}", *RULES]
    result = here_in(folder)("train", "--ignore-integrity", "recipe=tiny_cpu", *words, "run.name=trained", "--json")
    assert result.returncode == 0, result.stderr
    return folder / "runs" / "trained"
