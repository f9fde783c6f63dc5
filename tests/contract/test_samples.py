"""SLiME's own conversion of samples and its split over ranks, on what our plug-ins hand over."""

from __future__ import annotations

from argparse import Namespace

import pytest

from slime_swe.rollout.episode import Episode, Segment, StopReason
from slime_swe.rollout.records import to_samples
from tests.contract.rollouts import GROUP, a_masked_rollout, a_rollout, flat, play

ray = pytest.importorskip("ray", reason="comes with SLiME's environment")


def make_manager(manager_class, *, dp_size=1, **changes):
    from slime_swe.rewards.slime_plugin import post_process

    manager = object.__new__(manager_class)
    manager.args = Namespace(
        **{
            "reward_key": None,
            "rewards_normalization": True,
            "grpo_std_normalization": False,
            "rollout_top_p": 1.0,
            "rollout_batch_size": 2,
            "n_samples_per_prompt": GROUP,
            "global_batch_size": GROUP,
            "use_dynamic_batch_size": True,
            "max_tokens_per_gpu": 24,
            "micro_batch_size": None,
            "balance_data": False,
            "balance_by_flops": False,
        }
        | changes
    )
    manager.custom_reward_post_process_func = post_process
    manager.custom_convert_samples_to_train_data_func = None
    manager.set_train_parallel_config(
        {"dp_size": dp_size, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    )
    return manager


def test_the_samples_are_slimes_own(slime_home):
    from slime.utils.types import Sample

    assert all(type(sample) is Sample for sample in flat(a_rollout()))


def test_the_parts_of_a_table_of_routed_experts_are_one_for_slime(slime_home):
    import torch
    from slime.observability.rollout_data_utils import validate_rollout_routed_experts_for_replay

    from slime_swe.sample import Sample

    args = Namespace(num_layers=3, moe_router_topk=2, sglang_speculative_algorithm=None)
    table = torch.arange(1, 1 + 4 * 6, dtype=torch.int32)
    parts = tuple(part.numpy().tobytes() for part in (table[:12], table[12:18], table[18:]))
    segment = Segment([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], [0.0, -0.5, -0.5, 0.0, -0.5], 1, routed_experts=parts)
    episode = Episode("task", (segment,), "", StopReason.SUBMITTED)
    (sample,) = to_samples(args, Sample(index=0, metadata={}), episode, str, placeholder=0)
    assert torch.equal(sample.rollout_routed_experts, table.reshape(4, 3, 2))
    validate_rollout_routed_experts_for_replay([sample.rollout_routed_experts], args)


def test_slime_flattens_groups_in_which_some_episodes_have_several_samples(manager_class):
    from slime_swe.rollout.slime_plugin import RolloutFnTrainOutput, as_groups

    manager = make_manager(manager_class, load_debug_rollout_data=None)
    manager.data_source = None
    for groups in (a_rollout(), a_rollout()[::-1]):  # one that begins with such an episode, and one that does not
        manager.generate_rollout = lambda *_, evaluation, groups=groups: RolloutFnTrainOutput(as_groups(groups), {})
        data, _ = manager._get_rollout_data(0)
        assert [sample.index for sample in data] == [sample.index for sample in flat(groups)]


def test_siblings_pass_slimes_check_and_are_filtered_as_a_group(slime_home):
    from slime.observability.rollout_data_utils import validate_rollout_id_annotated
    from slime.rollout.filter_hub.base_types import call_dynamic_filter, should_drop_dynamic_filter_output

    from slime_swe.rewards.slime_plugin import keep_group

    groups = a_rollout()
    validate_rollout_id_annotated(groups)
    verdict = call_dynamic_filter(keep_group, Namespace(reward_key=None), groups[0])
    assert verdict.keep
    alike = [play(index, reward=-1.0) for index in range(4)]
    verdict = call_dynamic_filter(keep_group, Namespace(reward_key=None), alike)
    assert not verdict.keep and verdict.reason == "all_unsolved"
    for remaining in (3, 2):  # also where SLiME's own loop would have to sample another group for it
        assert should_drop_dynamic_filter_output(verdict, remaining_batch_size=remaining, target_data_size=2)


def test_advantages_masks_and_denominators_are_per_episode(manager_class):
    samples = flat(a_rollout())
    data = make_manager(manager_class)._convert_samples_to_train_data(samples)
    by_rollout = dict(zip(data["rollout_ids"], data["rewards"], strict=True))
    third = 1 / 3  # minus the baseline of both groups: three episodes earned 1, -1 and -1; 2 was broken, 5 had no turn
    assert by_rollout == pytest.approx(
        {0: 1 + third, 1: third - 1, 2: 0.0, 3: third - 1, 4: 1 + third, 5: 0.0, 6: third - 1, 7: third - 1}
    )
    assert [
        sum(mask) for mask, owner in zip(data["loss_masks"], data["rollout_ids"], strict=True) if owner in (2, 5)
    ] == [0, 0]
    siblings = [place for place, owner in enumerate(data["rollout_ids"]) if owner == 0]
    assert len(siblings) == 3
    total = sum(sum(data["loss_masks"][place]) for place in siblings)
    assert {data["rollout_mask_sums"][place] for place in siblings} == {total}
    assert data["truncated"] == [int(owner == 1) for owner in data["rollout_ids"]]
    lengths = zip(data["rollout_log_probs"], data["response_lengths"], data["loss_masks"], strict=True)
    assert all(len(log_probs) == length == len(mask) > 0 for log_probs, length, mask in lengths)


def test_a_masked_episode_is_in_the_baseline_and_not_in_the_loss(manager_class):
    masked = ("max_turns", "time_budget")
    data, unmasked = (
        make_manager(manager_class)._convert_samples_to_train_data(flat([a_masked_rollout(stops)]))
        for stops in (masked, ())
    )
    assert data["rewards"] == unmasked["rewards"] == pytest.approx([1.5, -0.5, -0.5, -0.5, -0.5])
    assert data["raw_reward"] == [1.0, -1.0, -1.0, -1.0, -1.0]
    assert data["rollout_ids"] == [0, 1, 2, 2, 3]
    sums = [sum(mask) for mask in data["loss_masks"]]
    assert min(sums[:2]) > 0 and sums[2:] == data["rollout_mask_sums"][2:] == [0, 0, 0]
    assert min(sum(mask) for mask in unmasked["loss_masks"]) > 0
    assert data["truncated"] == unmasked["truncated"] == [0, 0, 1, 1, 1]


def test_what_a_masked_episode_does_to_each_denominator(manager_class, one_process):
    """It still counts among the episodes of the step by which SLiME divides trajectory and constant reductions; in the
    token mean SLiME counts one token for each of its sequences."""
    import torch
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

    manager = make_manager(manager_class)
    data = manager._convert_samples_to_train_data(flat([a_masked_rollout(("max_turns", "time_budget"))]))
    (box,) = manager._split_train_data_by_dp(data)
    assert ray.get(box.inner)["global_batch_sizes"] == [GROUP]
    masks = [torch.tensor(mask) for mask in data["loss_masks"]]
    lengths, sums = data["response_lengths"], [torch.tensor(n) for n in data["rollout_mask_sums"]]
    total = [len(tokens) for tokens in data["tokens"]]
    losses = torch.cat([torch.full((length,), value) for length, value in zip(lengths, data["rewards"], strict=True)])
    assert get_sum_of_sample_mean(total, lengths, masks, sums)(losses).item() == pytest.approx(1.5 - 0.5)
    trained = [sum(mask) for mask in data["loss_masks"]]
    assert sum(torch.clamp_min(mask.sum(), 1) for mask in masks) == sum(trained) + 3


@pytest.mark.parametrize("dp_size", [1, 2])
def test_the_split_keeps_every_sample_once_and_an_episode_in_one_step(manager_class, dp_size):
    manager = make_manager(manager_class, dp_size=dp_size)
    samples = flat(a_rollout())
    ranks = [
        ray.get(box.inner) for box in manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))
    ]
    placed = sorted(place for rank in ranks for place in rank["partition"])
    assert placed == list(range(len(samples)))
    assert {tuple(rank["global_batch_sizes"]) for rank in ranks} == {(GROUP, GROUP)}
    steps = {}
    for rank in ranks:
        counts, batches = iter(rank["micro_batch_indices"]), rank["num_microbatches"]
        for step, count in enumerate(batches):
            for batch in (next(counts) for _ in range(count)):
                for local in batch:
                    steps.setdefault(rank["rollout_ids"][local], set()).add(step)
    assert all(len(found) == 1 for found in steps.values())


@pytest.mark.parametrize("groups", [a_rollout, lambda: [a_masked_rollout(("max_turns", "time_budget"))]])
def test_the_embedded_engine_lays_out_the_same_data(manager_class, groups):
    from slime_swe.embedded.train_data import to_train_data
    from slime_swe.rewards.slime_plugin import post_process

    manager, samples = make_manager(manager_class), flat(groups())
    ours = to_train_data(manager.args, samples, post_process)
    theirs = manager._convert_samples_to_train_data(sorted(samples, key=lambda s: (s.rollout_id, s.index)))
    assert ours.tokens == theirs["tokens"]
    assert ours.loss_masks == theirs["loss_masks"]
    assert ours.advantages == pytest.approx(theirs["rewards"])
    assert ours.rollout_ids == theirs["rollout_ids"]
    assert ours.mask_sums == theirs["rollout_mask_sums"]
