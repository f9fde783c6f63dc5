"""Samples as the trainer is given them; `tests/contract/test_samples.py` compares them with SLiME's own."""

from __future__ import annotations

from argparse import Namespace

import pytest

from slime_swe.embedded.train_data import TrainDataError, fill_rollout_ids, to_train_data
from slime_swe.sample import Sample


def sampled(index, mask, rollout_id=None, **changes) -> Sample:
    length = len(mask)
    return Sample(
        index=index, rollout_id=rollout_id, tokens=[7, *range(length)], response_length=length, loss_mask=mask,
        rollout_log_probs=[-0.5] * length, **changes,
    )  # fmt: skip


def made(samples, advantages=None):
    return to_train_data(
        Namespace(), samples, lambda args, ordered: ([0.0] * len(ordered), advantages or [1] * len(ordered))
    )


def test_siblings_stand_together_and_share_the_count_of_their_trained_tokens():
    data = made([sampled(2, [1], 2), sampled(0, [1, 0, 1], 0), sampled(-5, [1], 0)], [0.25, 0.25, -1])
    assert data.rollout_ids == [0, 0, 2]
    assert data.loss_masks == [[1], [1, 0, 1], [1]]
    assert data.mask_sums == [3, 3, 1]
    assert data.advantages == [0.25, 0.25, -1.0] and len(data) == 3


def test_what_is_removed_trains_nothing_and_is_not_counted():
    data = made([sampled(0, [1, 1], 0), sampled(1, [1, 1], 0, remove_sample=True)])
    assert data.loss_masks == [[1, 1], [0, 0]]
    assert data.mask_sums == [2, 2]


def test_samples_of_stale_groups_are_known_by_their_place():
    samples = [sampled(index, [1], index, group_index=index // 2) for index in (3, 0, 1, 2)]
    data = to_train_data(Namespace(), samples, lambda args, ordered: ([0.0] * 4, [1.0] * 4), stale_groups={1})
    assert data.stale == {2, 3}


def test_a_sample_without_a_rollout_is_one_of_its_own():
    assert fill_rollout_ids([None, 1, None, 1, 3, None]) == [0, 1, 2, 1, 3, 4]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss_mask": [1]}, "loss_mask length is 1"),
        ({"tokens": [1]}, "number of tokens is 1"),
        ({"tokens": [1, 2]}, "number of tokens, prompt included, is 2"),
        ({"rollout_log_probs": None}, "number of rollout_log_probs is None"),
    ],
)
def test_fields_that_contradict_each_other_are_named(changes, said):
    sample = sampled(4, [1, 1])
    vars(sample).update(changes)
    with pytest.raises(TrainDataError, match=f"sample 4: {said}"):
        made([sample])


def test_a_hook_that_returns_too_few_rewards_is_refused():
    with pytest.raises(TrainDataError, match="1 normalized rewards for 2 samples"):
        made([sampled(0, [1]), sampled(1, [1])], [1.0])
