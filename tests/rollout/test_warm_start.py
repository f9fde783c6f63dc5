"""Recorded episodes as training data: what is handed out, and what becomes of it."""

from __future__ import annotations

from argparse import Namespace

import pytest

from slime_swe.embedded.train_data import to_train_data
from slime_swe.errors import UserError
from slime_swe.rewards.slime_plugin import post_process
from slime_swe.rollout.records import record_of
from slime_swe.rollout.warm_start import RecordedEpisodes, generate, read_recorded
from tests.launch.warm_start.recorded import line, write


@pytest.fixture
def path(tmp_path):
    shorter = line("b", tokens=[9, 8, 7], loss_mask=[0, 1])
    return write(tmp_path / "solved.jsonl", line("a"), line("b", reward=0.5), shorter, line("c"))


def make_args(path, **changes) -> Namespace:
    values = {"swe_tasks": [str(path)], "n_samples_per_prompt": 1, "rollout_seed": 3, "rollout_shuffle": True}
    more = {"save": str(path.parent), "load": str(path.parent), "reward_key": None, "loss_type": "sft_loss"}
    return Namespace(**values | more | changes)


def tasks(groups) -> list[str]:
    return [group[0].metadata["task"]["id"] for group in groups]


def test_an_epoch_has_each_episode_once_and_goes_on_where_it_was(path):
    source = RecordedEpisodes(make_args(path))
    assert len(source) == 3
    first = tasks(source.get_samples(3))
    assert sorted(first) == ["task of a", "task of b", "task of c"]
    source.save(0)
    following = tasks(source.get_samples(4))
    resumed = RecordedEpisodes(make_args(path))
    resumed.load(0)
    assert tasks(resumed.get_samples(4)) == following


def test_a_run_does_not_go_on_with_another_file(path):
    source = RecordedEpisodes(make_args(path))
    source.save(0)
    write(path, line("a"), line("c"))
    with pytest.raises(UserError, match="saved with other tasks"):
        RecordedEpisodes(make_args(path)).load(0)


async def test_the_recorded_tokens_are_what_is_trained_and_siblings_share_their_episode(path):
    args = make_args(path, rollout_shuffle=False)
    one, two, _ = [await generate(args, group[0], {}) for group in RecordedEpisodes(args).get_samples(3)]
    assert (one.tokens, one.loss_mask, one.response_length) == ([1, 2, 3, 4, 5], [0, 1, 1], 3)
    assert [sample.tokens for sample in two] == [[1, 2, 3, 4, 5], [9, 8, 7]]
    assert len({sample.index for sample in [one, *two]}) == 3
    assert [sample.rollout_id for sample in [one, *two]] == [0, 1, 1]
    assert [sample.reward for sample in [one, *two]] == [1.0, 0.5, 0.5]
    data = to_train_data(args, [one, *two], post_process)
    assert data.loss_masks == [[0, 1, 1], [0, 1], [0, 1, 1]] and data.mask_sums == [2, 3, 3]
    assert record_of(one).log_probs is None and record_of(one).task == "task of a"


async def test_a_policy_s_own_tokens_still_need_their_log_probabilities(path):
    args = make_args(path, loss_type="policy_loss")
    (group,) = RecordedEpisodes(args).get_samples(1)
    sample = await generate(args, group[0], {})
    with pytest.raises(UserError, match="number of rollout_log_probs is None"):
        to_train_data(
            args, [sample] if not isinstance(sample, list) else sample, lambda args, all: ([0] * len(all),) * 2
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": [1, 2, 3]}, "3 tokens, 3 in its mask and 2 to train"),
        ({"loss_mask": [0, 0]}, "and 0 to train"),
        ({"tokens": "words"}, "no sample that `slime-swe sft` has written with its tokens"),
    ],
)
def test_a_line_that_trains_nothing_is_refused_with_its_number(tmp_path, changes, said):
    path = write(tmp_path / "bad.jsonl", line("a"), line("b", **changes))
    with pytest.raises(UserError, match=f"line 2 .*{said}"):
        read_recorded(path)


def test_lines_of_messages_alone_are_refused(tmp_path):
    path = write(tmp_path / "chat.jsonl", {"episode": "a", "task": "t", "messages": [], "tools": []})
    with pytest.raises(UserError, match="written with its tokens"):
        read_recorded(path)


def test_a_missing_and_an_empty_file_are_named(tmp_path):
    with pytest.raises(UserError, match="slime-swe sft RUN"):
        read_recorded(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="has no episodes"):
        read_recorded(write(tmp_path / "empty.jsonl"))
