"""A replay of a whole run's record under real SLiME and Megatron gives the losses that SLiME reported."""

from __future__ import annotations

import pytest

from tests.contract.test_training import train
from tests.launch.replay.made import FILTER, replayed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RULES = (
    "algorithm.reduction=token", "algorithm.std_normalization=true", "algorithm.rollout_logprobs=false", FILTER,
    "rollout.max_turns=6", "rollout.mask_truncated=[max_turns,context_full]", "reward.overlong_turns=4",
)  # fmt: skip


def test_the_loss_follows_from_the_record(slime_home, tmp_path, capsys):
    size = "rollout.batch_size=4", "rollout.samples_per_task=4", "run.num_rollouts=2"
    done = train(tmp_path, *size, *RULES)
    losses = [line["pg_loss"] for line in done.metrics]
    assert max(map(abs, losses)) > 1e-3, "or it shows nothing"
    capsys.readouterr()
    document = replayed(capsys, done.folder)
    assert document["check"]["holds"] and document["check"]["compared"]["pg_loss"] == 2
    assert document["check"]["compared"]["largest difference of an advantage"] == 2
    assert document["before"]["episodes"]["masked"] > 0
