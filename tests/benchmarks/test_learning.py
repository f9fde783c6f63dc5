"""A run whose rewards are shuffled learns nothing from them."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.learning import shuffled_post_process
from slime_swe.rewards.slime_plugin import post_process
from slime_swe.sample import Sample


def make_sample(index: int, reward: float, **changes) -> Sample:
    values = {"rollout_id": index, "group_index": index // 4, "status": Sample.Status.COMPLETED} | changes
    return Sample(index=index, reward=reward, **values)


def test_shuffled_rewards_keep_their_counts_and_say_nothing_of_who_earned_them():
    samples = [make_sample(i, 1.0 if i % 4 == 0 else -1.0) for i in range(64)] + [
        make_sample(64, 0.0, status=Sample.Status.ABORTED, remove_sample=True)
    ]
    args = Namespace(seed=3, reward_key=None, rewards_normalization=True, grpo_std_normalization=False)
    raw, shuffled = shuffled_post_process(args, samples)
    assert raw == [sample.reward for sample in samples]
    assert (raw, shuffled) == shuffled_post_process(args, samples)
    assert shuffled[-1] == 0.0
    _, honest = post_process(args, samples)
    assert shuffled != honest and sum(shuffled) == pytest.approx(0)
    agreement = sum(a * b > 0 for a, b in zip(shuffled, honest, strict=True)) / 64
    assert agreement < 0.85
